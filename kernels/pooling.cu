// Pooling over windows of images, forward and backward: the largest element, the mean, the mean over as many cells as asked.
//
// Each thread makes one element of its result and gathers what that is made of, so that nothing is added atomically.
// Traffic in bytes, n elements of s in windows of m: max_pool2d reads n s and writes m (s + 1), one byte for the position
// inside the window (four for more than 256); its gradient reads m (s + 1) and writes n s; the means read n s and write m s,
// their gradients the other way round. What windows share is found in cache.

#include "common.cuh"

struct Windows {
    i64 height, width, rows, columns, kernel[2], stride[2], padding[2], dilation[2];
};

// The windows of one dimension that may see position p: first to last, from what a window sees first.
__device__ __forceinline__ void windows_of(i64 p, const Windows& w, int d, i64 count, i64& first, i64& last) {
    i64 reach = p + w.padding[d], span = (w.kernel[d] - 1) * w.dilation[d];
    first = reach > span ? (reach - span + w.stride[d] - 1) / w.stride[d] : 0;
    last = reach / w.stride[d] < count - 1 ? reach / w.stride[d] : count - 1;
}

// Of equals the first is the largest, and the last NaN before all; a window begins at its first position inside.
template <typename T, typename I>
__global__ void max_pool2d(const T* x, T* out, I* index, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) {
        i64 column = i % w.columns, row = i / w.columns % w.rows, plane = i / w.columns / w.rows;
        const T* from = x + plane * w.height * w.width;
        WIDE(T) best = lowest<WIDE(T)>();
        i64 place = -1;
        for (i64 a = 0; a < w.kernel[0]; ++a)
            for (i64 b = 0; b < w.kernel[1]; ++b) {
                i64 y = row * w.stride[0] - w.padding[0] + a * w.dilation[0];
                i64 z = column * w.stride[1] - w.padding[1] + b * w.dilation[1];
                if (y < 0 || y >= w.height || z < 0 || z >= w.width) continue;
                WIDE(T) v = (WIDE(T))from[y * w.width + z];
                if (place < 0 || v > best || v != v) best = v, place = a * w.kernel[1] + b;
            }
        out[i] = (T)best;
        index[i] = (I)(place < 0 ? 0 : place);
    }
}

template <typename T, typename I>
__global__ void max_pool2d_grad(const T* dy, const I* index, T* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) {
        i64 z = i % w.width, y = i / w.width % w.height, plane = i / w.width / w.height, top, bottom, left, right;
        windows_of(y, w, 0, w.rows, top, bottom);
        windows_of(z, w, 1, w.columns, left, right);
        WIDE(T) total = 0;
        for (i64 row = top; row <= bottom; ++row)
            for (i64 column = left; column <= right; ++column) {
                i64 down = y + w.padding[0] - row * w.stride[0], over = z + w.padding[1] - column * w.stride[1];
                i64 from = (plane * w.rows + row) * w.columns + column;
                if (down % w.dilation[0] || over % w.dilation[1]) continue;
                if ((i64)index[from] == down / w.dilation[0] * w.kernel[1] + over / w.dilation[1]) total += (WIDE(T))dy[from];
            }
        out[i] = (T)total;
    }
}

// Where in its plane the element at each window's position stands.
__device__ __forceinline__ i64 place_of(i64 i, i64 position, const Windows& w) {
    i64 y = i / w.columns % w.rows * w.stride[0] - w.padding[0] + position / w.kernel[1] * w.dilation[0];
    return y * w.width + i % w.columns * w.stride[1] - w.padding[1] + position % w.kernel[1] * w.dilation[1];
}

template <typename T, typename I>
__global__ void max_pool2d_take(const T* x, const I* index, T* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) out[i] = x[i / w.columns / w.rows * w.height * w.width + place_of(i, (i64)index[i], w)];
}

template <typename I>
__global__ void max_pool2d_places(const I* index, i64* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) out[i] = place_of(i, (i64)index[i], w);
}

// Elements of a window along one dimension: those inside, or with the padding.
__device__ __forceinline__ i64 length_of(i64 k, const Windows& w, int d, i64 size, bool padded) {
    i64 start = k * w.stride[d] - w.padding[d], end = start + w.kernel[d];
    if (end > size + w.padding[d]) end = size + w.padding[d];
    if (padded) return end - start;
    return (end < size ? end : size) - (start > 0 ? start : 0);
}

// `divisor` is 0 where each window is divided by its own size.
__device__ __forceinline__ i64 size_of(i64 row, i64 column, const Windows& w, bool padded, i64 divisor) {
    return divisor ? divisor : length_of(row, w, 0, w.height, padded) * length_of(column, w, 1, w.width, padded);
}

template <typename T>
__global__ void avg_pool2d(const T* x, T* out, const __grid_constant__ Windows w, i64 n, int padded, i64 divisor) {
    EACH(i, n) {
        i64 column = i % w.columns, row = i / w.columns % w.rows, plane = i / w.columns / w.rows;
        i64 top = row * w.stride[0] - w.padding[0], left = column * w.stride[1] - w.padding[1];
        WIDE(T) total = 0;
        for (i64 y = top < 0 ? 0 : top; y < top + w.kernel[0] && y < w.height; ++y)
            for (i64 z = left < 0 ? 0 : left; z < left + w.kernel[1] && z < w.width; ++z)
                total += (WIDE(T))x[(plane * w.height + y) * w.width + z];
        out[i] = (T)(total / (WIDE(T))size_of(row, column, w, padded, divisor));
    }
}

template <typename T>
__global__ void avg_pool2d_grad(const T* dy, T* out, const __grid_constant__ Windows w, i64 n, int padded, i64 divisor) {
    EACH(i, n) {
        i64 z = i % w.width, y = i / w.width % w.height, plane = i / w.width / w.height, top, bottom, left, right;
        windows_of(y, w, 0, w.rows, top, bottom);
        windows_of(z, w, 1, w.columns, left, right);
        WIDE(T) total = 0;
        for (i64 row = top; row <= bottom; ++row)
            for (i64 column = left; column <= right; ++column)
                total += (WIDE(T))dy[(plane * w.rows + row) * w.columns + column]
                    / (WIDE(T))size_of(row, column, w, padded, divisor);
        out[i] = (T)total;
    }
}

// Cell k of `cells` begins at floor(k size / cells) and ends before ceil((k + 1) size / cells).
template <typename T>
__global__ void adaptive_avg_pool2d(const T* x, T* out, i64 height, i64 width, i64 rows, i64 columns, i64 n) {
    EACH(i, n) {
        i64 column = i % columns, row = i / columns % rows, plane = i / columns / rows;
        i64 top = row * height / rows, bottom = ((row + 1) * height + rows - 1) / rows;
        i64 left = column * width / columns, right = ((column + 1) * width + columns - 1) / columns;
        WIDE(T) total = 0;
        for (i64 y = top; y < bottom; ++y)
            for (i64 z = left; z < right; ++z) total += (WIDE(T))x[(plane * height + y) * width + z];
        out[i] = (T)(total / (WIDE(T))((bottom - top) * (right - left)));
    }
}

template <typename T>
__global__ void adaptive_avg_pool2d_grad(const T* dy, T* out, i64 height, i64 width, i64 rows, i64 columns, i64 n) {
    EACH(i, n) {
        i64 z = i % width, y = i / width % height, plane = i / width / height;
        WIDE(T) total = 0;
        // Cells overlap where they are no divisors: the first that reaches y, and those after it that have begun.
        for (i64 row = y * rows / height; row < rows && row * height / rows <= y; ++row) {
            i64 top = row * height / rows, bottom = ((row + 1) * height + rows - 1) / rows;
            if (bottom <= y) continue;
            for (i64 column = z * columns / width; column < columns && column * width / columns <= z; ++column) {
                i64 left = column * width / columns, right = ((column + 1) * width + columns - 1) / columns;
                if (right > z)
                    total += (WIDE(T))dy[(plane * rows + row) * columns + column] / (WIDE(T))((bottom - top) * (right - left));
            }
        }
        out[i] = (T)total;
    }
}
