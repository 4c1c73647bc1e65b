// Pooling over windows of images, forward and backward: maximum, mean, and the mean over a given number of cells.
//
// Each thread computes one element of its result and gathers what contributes to it, so nothing is added atomically.
// Traffic in bytes, n elements of s in m windows: max_pool2d reads n s and writes m (s + 1), one byte for the position
// inside the window (four if it has more than 256); its gradient reads m (s + 1) and writes n s; the means read n s and write
// m s, their gradients the other way round. Elements that windows share are in cache.

#include "common.cuh"

struct Windows {
    i64 height, width, rows, columns, kernel[2], stride[2], padding[2], dilation[2];
};

// Plane, row and column of element i of planes with so many rows and columns. All sizes within one plane fit into 32 bits, and so
// do the positions of most tensors, whose divisions are then much cheaper.
struct Spot {
    i64 plane;
    int row, column;
    __device__ __forceinline__ Spot(i64 i, i64 rows, i64 columns) {
        if (i >> 32) {
            i64 line = i / columns;
            plane = line / rows, row = (int)(line - plane * rows), column = (int)(i - line * columns);
        } else {
            u32 line = (u32)i / (u32)columns, whole = line / (u32)rows;
            plane = whole, row = (int)(line - whole * (u32)rows), column = (int)((u32)i - line * (u32)columns);
        }
    }
};

// The number of lines of so many columns before element i.
__device__ __forceinline__ i64 line_of(i64 i, i64 columns) { return i >> 32 ? i / columns : (i64)((u32)i / (u32)columns); }

// The windows along one dimension that may contain position p: from `first` to `last`.
__device__ __forceinline__ void windows_of(int p, const Windows& w, int d, int count, int& first, int& last) {
    int reach = p + (int)w.padding[d], span = ((int)w.kernel[d] - 1) * (int)w.dilation[d], stride = (int)w.stride[d];
    first = reach > span ? (reach - span + stride - 1) / stride : 0;
    last = reach / stride < count - 1 ? reach / stride : count - 1;
}

// Among equal elements the first is the maximum; the last NaN wins over all. A window begins at its first position inside.
template <typename T, typename I>
__global__ void max_pool2d(const T* x, T* out, I* index, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) {
        Spot spot(i, w.rows, w.columns);
        int height = (int)w.height, width = (int)w.width, down = (int)w.kernel[0], across = (int)w.kernel[1];
        int top = spot.row * (int)w.stride[0] - (int)w.padding[0], left = spot.column * (int)w.stride[1] - (int)w.padding[1];
        const T* from = x + spot.plane * w.height * w.width;
        WIDE(T) best = lowest<WIDE(T)>();
        int place = -1;
        for (int a = 0; a < down; ++a) {
            int y = top + a * (int)w.dilation[0];
            if (y < 0 || y >= height) continue;
            const T* line = from + (i64)y * width;
            for (int b = 0; b < across; ++b) {
                int z = left + b * (int)w.dilation[1];
                if (z < 0 || z >= width) continue;
                WIDE(T) v = (WIDE(T))line[z];
                if (place < 0 || v > best || v != v) best = v, place = a * across + b;
            }
        }
        out[i] = (T)best;
        index[i] = (I)(place < 0 ? 0 : place);
    }
}

// The same for windows of 2 by 2 elements side by side, of planes with even sizes: n windows, a few of `columns` for each thread,
// whose elements are one access in either row.
template <typename T, typename I>
__global__ void max_pool2d_halved(const T* x, T* out, I* index, i64 columns, i64 n) {
    const int N = 8 / sizeof(T);
    EACH(i, n / N) {
        i64 from = 2 * N * i + 2 * columns * line_of(N * i, columns);
        Pack<T, 2 * N> rows[2] = {*(const Pack<T, 2 * N>*)(x + from), *(const Pack<T, 2 * N>*)(x + from + 2 * columns)};
        Pack<T, N> best;
        Pack<I, N> place;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            best.of[k] = rows[0].of[2 * k];
            place.of[k] = 0;
#pragma unroll
            for (int tap = 1; tap < 4; ++tap) {
                WIDE(T) v = (WIDE(T))rows[tap / 2].of[2 * k + tap % 2];
                bool won = v > (WIDE(T))best.of[k] || v != v;
                best.of[k] = won ? (T)v : best.of[k];
                place.of[k] = won ? (I)tap : place.of[k];
            }
        }
        *(Pack<T, N>*)(out + N * i) = best;
        *(Pack<I, N>*)(index + N * i) = place;
    }
}

template <typename T, typename I>
__global__ void max_pool2d_halved_grad(const T* dy, const I* index, T* out, i64 columns, i64 n) {
    const int N = 8 / sizeof(T);
    EACH(i, n / N) {
        i64 from = 2 * N * i + 2 * columns * line_of(N * i, columns);
        Pack<T, N> g = *(const Pack<T, N>*)(dy + N * i);
        Pack<I, N> place = *(const Pack<I, N>*)(index + N * i);
        Pack<T, 2 * N> rows[2];
#pragma unroll
        for (int k = 0; k < N; ++k)
#pragma unroll
            for (int tap = 0; tap < 4; ++tap) rows[tap / 2].of[2 * k + tap % 2] = (int)place.of[k] == tap ? g.of[k] : (T)0;
        *(Pack<T, 2 * N>*)(out + from) = rows[0];
        *(Pack<T, 2 * N>*)(out + from + 2 * columns) = rows[1];
    }
}

template <typename T, typename I>
__global__ void max_pool2d_grad(const T* dy, const I* index, T* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) {
        Spot spot(i, w.height, w.width);
        int y = spot.row + (int)w.padding[0], z = spot.column + (int)w.padding[1], top, bottom, left, right;
        windows_of(spot.row, w, 0, (int)w.rows, top, bottom);
        windows_of(spot.column, w, 1, (int)w.columns, left, right);
        WIDE(T) total = 0;
        for (int row = top; row <= bottom; ++row) {
            // The tap of the window that the dilation puts at this distance; there may be none.
            int apart = (int)w.dilation[0], down = y - row * (int)w.stride[0], a = apart == 1 ? down : down / apart;
            i64 line = (spot.plane * w.rows + row) * w.columns;
            for (int column = left; a * apart == down && column <= right; ++column) {
                int beside = (int)w.dilation[1], over = z - column * (int)w.stride[1], b = beside == 1 ? over : over / beside;
                if (b * beside == over && (int)index[line + column] == a * (int)w.kernel[1] + b)
                    total += (WIDE(T))dy[line + column];
            }
        }
        out[i] = (T)total;
    }
}

// The index within its plane of the element at a window's position.
__device__ __forceinline__ i64 place_of(const Spot& spot, u32 position, const Windows& w) {
    u32 down = position / (u32)w.kernel[1], over = position - down * (u32)w.kernel[1];
    i64 y = spot.row * w.stride[0] - w.padding[0] + down * w.dilation[0];
    return y * w.width + spot.column * w.stride[1] - w.padding[1] + over * w.dilation[1];
}

template <typename T, typename I>
__global__ void max_pool2d_take(const T* x, const I* index, T* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) {
        Spot spot(i, w.rows, w.columns);
        out[i] = x[spot.plane * w.height * w.width + place_of(spot, (u32)index[i], w)];
    }
}

template <typename I>
__global__ void max_pool2d_places(const I* index, i64* out, const __grid_constant__ Windows w, i64 n) {
    EACH(i, n) out[i] = place_of(Spot(i, w.rows, w.columns), (u32)index[i], w);
}

// The number of elements of a window along one dimension: those inside, or also the padding.
__device__ __forceinline__ int length_of(int k, const Windows& w, int d, i64 size, bool padded) {
    int start = k * (int)w.stride[d] - (int)w.padding[d], end = start + (int)w.kernel[d];
    if (end > (int)(size + w.padding[d])) end = (int)(size + w.padding[d]);
    if (padded) return end - start;
    return (end < (int)size ? end : (int)size) - (start > 0 ? start : 0);
}

// `divisor` is 0 if each window is divided by its own size.
__device__ __forceinline__ i64 size_of(int row, int column, const Windows& w, bool padded, i64 divisor) {
    return divisor ? divisor : (i64)length_of(row, w, 0, w.height, padded) * length_of(column, w, 1, w.width, padded);
}

template <typename T>
__global__ void avg_pool2d(const T* x, T* out, const __grid_constant__ Windows w, i64 n, int padded, i64 divisor) {
    EACH(i, n) {
        Spot spot(i, w.rows, w.columns);
        int top = spot.row * (int)w.stride[0] - (int)w.padding[0], bottom = top + (int)w.kernel[0];
        int left = spot.column * (int)w.stride[1] - (int)w.padding[1], right = left + (int)w.kernel[1];
        if (bottom > (int)w.height) bottom = (int)w.height;
        if (right > (int)w.width) right = (int)w.width;
        WIDE(T) total = 0;
        for (int y = top < 0 ? 0 : top; y < bottom; ++y) {
            const T* line = x + (spot.plane * w.height + y) * w.width;
            for (int z = left < 0 ? 0 : left; z < right; ++z) total += (WIDE(T))line[z];
        }
        out[i] = (T)(total / (WIDE(T))size_of(spot.row, spot.column, w, padded, divisor));
    }
}

template <typename T>
__global__ void avg_pool2d_grad(const T* dy, T* out, const __grid_constant__ Windows w, i64 n, int padded, i64 divisor) {
    EACH(i, n) {
        Spot spot(i, w.height, w.width);
        int top, bottom, left, right;
        windows_of(spot.row, w, 0, (int)w.rows, top, bottom);
        windows_of(spot.column, w, 1, (int)w.columns, left, right);
        WIDE(T) total = 0;
        for (int row = top; row <= bottom; ++row)
            for (int column = left; column <= right; ++column)
                total += (WIDE(T))dy[(spot.plane * w.rows + row) * w.columns + column]
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
        Spot spot(i, height, width);
        i64 z = spot.column, y = spot.row;
        WIDE(T) total = 0;
        // Cells overlap if their number does not divide the size: the first that reaches y, and those after it that have begun.
        for (i64 row = y * rows / height; row < rows && row * height / rows <= y; ++row) {
            i64 top = row * height / rows, bottom = ((row + 1) * height + rows - 1) / rows;
            for (i64 column = z * columns / width; column < columns && column * width / columns <= z; ++column) {
                i64 left = column * width / columns, right = ((column + 1) * width + columns - 1) / columns;
                total += (WIDE(T))dy[(spot.plane * rows + row) * columns + column] / (WIDE(T))((bottom - top) * (right - left));
            }
        }
        out[i] = (T)total;
    }
}
