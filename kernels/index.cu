// Positions: ranges and triangles, concatenation, and reading and writing by integer indices.
//
// Traffic in bytes, n results of s, k positions of p over a dimension of d: cat reads and writes n s, 16 bytes at a time if all
// its tensors allow it; take and take_along read n (s + p) and write n s, 16 bytes at a time if rows allow it; take_grad writes
// d rows, and for each of them reads all k positions and the rows of dy that belong to it; put reads all k positions for each of
// d rows and moves the last row for that position; add_at reads all k positions for each of d rows, and along a dimension those
// of its line for each of its d elements; both also move what is written. Where k d is large, the kernels of group.cu read each
// position a few times in all. extreme_along reads k positions and values, and writes at most as many elements: an extreme does not
// depend on the order, so it is the one with atomics. Where positions repeat, sums are computed, and the winning write is chosen,
// in the order of the positions. An out-of-range position gives NaN (0 for integers) when read, and is skipped when written: the
// host could not check it without waiting. `back` is added to negative positions: the length if they count from the end, 0 if
// they are out of range.

#include "common.cuh"
#include "index.cuh"

template <typename T> __device__ __forceinline__ T outside() { return (T)0; }
template <> __device__ __forceinline__ float outside<float>() { return not_a_number<float>(); }
template <> __device__ __forceinline__ double outside<double>() { return not_a_number<double>(); }
template <> __device__ __forceinline__ half outside<half>() { return (half)not_a_number<float>(); }
template <> __device__ __forceinline__ bfloat outside<bfloat>() { return (bfloat)not_a_number<float>(); }

// Two roundings, as on the CPU: a fused multiply-add would change the last bit.
__device__ __forceinline__ double moved(double i, double step, double start) { return __dadd_rn(__dmul_rn(i, step), start); }
__device__ __forceinline__ i64 moved(i64 i, i64 step, i64 start) { return i * step + start; }

template <typename T, typename S>
__global__ void arange(T* out, S start, S step, i64 n) {
    EACH(i, n) out[i] = stored<T>(moved((S)i, step, start));
}

// The elements on one side of a diagonal of [.., rows, columns], and zeros elsewhere. Tensor 0 of the axes is x.
template <typename T>
__global__ void triangle(const T* x, T* out, const __grid_constant__ Axes axes, i64 n, i64 rows, i64 columns, i64 diagonal,
                         int lower) {
    EACH(i, n) {
        i64 off = i % columns - i / columns % rows - diagonal;
        out[i] = (lower ? off <= 0 : off >= 0) ? x[at(axes, i)] : (T)0;
    }
}

// Up to six tensors that are joined along a dimension: where each ends, and the stride of its elements there.
struct Joined {
    i64 ends[6], steps[6];
    u64 of[6];
};

// out[lead, j, t] of element i and its N - 1 next neighbors is x[lead, j - start, t] of the tensor that contains j. The axes'
// tensors are the joined ones, without the dimension; `along` counts their elements in it, and `all` those of out.
template <typename T, int N, typename I>
__device__ __forceinline__ void join(T* out, const Joined& joined, const Axes& axes, I i, I tail, I along, i64 all) {
    I row = i / tail, t = i - row * tail, lead = row / along, j = row - lead * along;
    int k = 0;
    while ((i64)j >= joined.ends[k]) ++k;
    i64 from = ((i64)j - (k ? joined.ends[k - 1] : 0)) * joined.steps[k];
    I rest = lead * tail + t;
#pragma unroll 1
    for (int d = (int)axes.count - 1; d > 0; --d) {
        I n = (I)axes.shape[d], next = rest / n;
        from += (i64)(rest - next * n) * axes.strides[k][d];
        rest = next;
    }
    from += (i64)rest * axes.strides[k][0];
    *(Pack<T, N>*)(out + ((i64)lead * all + (i64)j) * (i64)tail + (i64)t) = *(const Pack<T, N>*)((const T*)joined.of[k] + from);
}

template <typename T, int N>
__global__ void cat(T* out, const __grid_constant__ Joined joined, const __grid_constant__ Axes axes, i64 n, i64 tail,
                    i64 along, i64 all) {
    // As in `locate`: dividing in 32 bits is much cheaper.
    if (n >> 32) EACH(i, n / N) join<T, N, u64>(out, joined, axes, i * N, tail, along, all);
    else EACH(i, n / N) join<T, N, u32>(out, joined, axes, i * N, tail, along, all);
}

template <typename T>
__global__ void eye(T* out, i64 n, i64 columns) {
    EACH(i, n) out[i] = (T)(float)(i / columns == i % columns);
}

// out[l, k, t] = x[l, index[k], t], N neighbors at a time; rows at the position `padding` are zeros.
template <typename T, typename I, int N>
__global__ void take(const T* x, const I* index, T* out, i64 n, i64 length, i64 count, i64 tail, i64 padding,
                     i64 back) {
    typedef Pack<T, N> P;
    // Elements of a thread at once, since each waits for two reads.
    constexpr int MANY = 4;
    i64 many = tail / N, whole = n / N, threads = (i64)gridDim.x * 256;
    bool small = !((u64)(n | many | count) >> 32);
    for (i64 first = (i64)blockIdx.x * 256 + threadIdx.x; first < whole; first += threads * MANY) {
        i64 from[MANY];
        I at[MANY];
        P found[MANY];
#pragma unroll
        for (int j = 0; j < MANY; ++j) {
            i64 i = first + j * threads;
            // As in `locate`: dividing in 32 bits is much cheaper.
            i64 row = small ? (i64)((u32)i / (u32)many) : i / many;
            i64 lead = row < count ? 0 : small ? (i64)((u32)row / (u32)count) : row / count;
            at[j] = i < whole ? index[row - lead * count] : 0;
            from[j] = lead * length * many + i - row * many;
        }
#pragma unroll
        for (int j = 0; j < MANY; ++j) {
            i64 p = inside(at[j], length, back);
            if (p >= 0 && p != padding && first + j * threads < whole) {
                found[j] = *(const P*)(x + (from[j] + p * many) * N);
            } else {
#pragma unroll
                for (int k = 0; k < N; ++k) found[j].of[k] = p < 0 ? outside<T>() : (T)0;
            }
        }
#pragma unroll
        for (int j = 0; j < MANY; ++j)
            if (first + j * threads < whole) *(P*)(out + (first + j * threads) * N) = found[j];
    }
}

// Calls `with` for lists of matching numbers below `count`, in order: how many there are, and how they differ from a first one. A
// block tests 1024 at once, and all its threads process each.
template <typename Match, typename Do>
__device__ __forceinline__ void each_match(i64 count, const Match& match, const Do& with) {
    __shared__ u32 counts[8];
    __shared__ u16 found[1024];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (i64 start = 0; start < count; start += 1024) {
        int own = warp * 128 + lane;
        bool matches[4];
        u32 masks[4], many = 0, before = 0, all = 0;
        // The reads of all four are in flight together.
#pragma unroll
        for (int j = 0; j < 4; ++j) matches[j] = start + own + j * 32 < count && match(start + own + j * 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            masks[j] = __ballot_sync(0xffffffffu, matches[j]);
            many += __popc(masks[j]);
        }
        __syncthreads();
        if (!lane) counts[warp] = many;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            if (w < warp) before += counts[w];
            all += counts[w];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (matches[j]) found[before + __popc(masks[j] & ((1u << lane) - 1))] = (u16)(own + j * 32);
            before += __popc(masks[j]);
        }
        __syncthreads();
        if (all) with(start, found, (int)all);
    }
}

// A block computes out[p, :] from the dy[k, :] with index[k] == p, in the order of k, 1024 elements at a time, so that they are
// summed in registers. Nothing is added for the position `padding`.
template <typename T, typename I>
__device__ __forceinline__ void add_up(const T* dy, const I* index, T* out, i64 p, i64 length, i64 count, i64 tail, i64 padding,
                                       i64 back) {
    typedef WIDE(T) A;
    for (i64 first = threadIdx.x; first - threadIdx.x < tail; first += 1024) {
        A total[4] = {0, 0, 0, 0};
        each_match(p == padding ? 0 : count, [&](i64 k) { return inside(index[k], length, back) == p; },
                   [&](i64 start, const u16* found, int all) {
            // Four rows' loads are in flight.
            for (int k = 0; k < all; k += 4) {
                T next[4][4];
#pragma unroll
                for (int m = 0; m < 4; ++m)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        if (k + m < all && first + j * 256 < tail)
                            next[m][j] = dy[(start + found[k + m]) * tail + first + j * 256];
#pragma unroll
                for (int m = 0; m < 4; ++m)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        if (k + m < all && first + j * 256 < tail) total[j] += (A)next[m][j];
            }
        });
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (first + j * 256 < tail) out[first + j * 256] = (T)total[j];
    }
}

// A block takes several of the rows out[l, p, :] if there are more than a grid can have blocks.
template <typename T, typename I>
__global__ void take_grad(const T* dy, const I* index, T* out, i64 length, i64 count, i64 tail, i64 padding, i64 back, i64 rows) {
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x)
        add_up(dy + row / length * count * tail, index, out + row * tail, row % length, length, count, tail, padding, back);
}

// A block writes x[.., p, ..] from values[.., k, ..], where k is the last occurrence of p. Tensors 0, 1 and 2 of the layout are
// index, values and x; `stride` is that of the indexed dimension.
template <typename T, typename V, typename I>
__global__ void put(T* x, const V* values, const I* index, const __grid_constant__ Layout l, i64 length, i64 stride,
                    i64 back) {
    __shared__ i64 room[8];
    i64 p = blockIdx.x, last = -1, place[3];
    for (i64 k = threadIdx.x; k < l.width; k += 256)
        if (inside(index[at(l.folded, k)], length, back) == p) last = k;
    last = team_fold<Most>(last, Team(256), room);
    if (last < 0) return;
    locate(l.folded, last, place);
    values += place[1];
    for (i64 r = threadIdx.x; r < l.rows; r += 256) {
        locate(l.kept, r, place);
        x[place[2] + p * stride] = stored<T>((WIDE(V))values[place[1]]);
    }
}

// out[.., i, ..] = x[.., index[.., i, ..], ..]. The axes are those of the index; tensor 0 is x without the indexed dimension.
template <typename T, typename I>
__global__ void take_along(const T* x, const I* index, T* out, const __grid_constant__ Axes axes, i64 n, i64 length,
                           i64 stride, i64 back) {
    EACH(i, n) {
        i64 p = inside(index[i], length, back);
        out[i] = p < 0 ? outside<T>() : x[at(axes, i) + p * stride];
    }
}

// One thread per element: rows are lines of the index along the dimension; tensors 0 and 1 are the index and the result.
template <typename T, typename I>
__global__ void take_along_grad(const T* dy, const I* index, T* out, const __grid_constant__ Layout l, i64 length,
                                i64 stride, i64 step, i64 back) {
    EACH(i, l.rows * length) {
        i64 p = i % length, line[2];
        locate(l.kept, i / length, line);
        WIDE(T) total = 0;
        for (i64 k = 0; k < l.width; ++k)
            if (inside(index[line[0] + k * step], length, back) == p) total += (WIDE(T))dy[line[0] + k * step];
        out[line[1] + p * stride] = (T)total;
    }
}

// out[.., p, ..] is the sum of dy[.., w, .., k] over the windows w and their elements k at position p = w step + k dilation.
// Tensor 0 of the axes, which are those of out, is dy without these two dimensions.
template <typename T>
__global__ void windows_grad(const T* dy, T* out, const __grid_constant__ Axes axes, i64 n, i64 tail, i64 length, i64 count,
                             i64 size, i64 step, i64 dilation, i64 window, i64 element) {
    EACH(i, n) {
        i64 p = i / tail % length, from = at(axes, i);
        WIDE(T) total = 0;
        for (i64 k = 0; k < size && k * dilation <= p; ++k) {
            i64 w = (p - k * dilation) / step;
            if (w * step + k * dilation == p && w < count) total += (WIDE(T))dy[from + w * window + k * element];
        }
        out[i] = (T)total;
    }
}

// Sets x[.., index[.., i, ..], ..] to the last such values[.., i, ..], or adds all of them. One thread per element: rows are lines
// of the index along the dimension; tensors 0, 1 and 2 are the index, the values and x.
template <typename T, typename I, bool ADD>
__global__ void along(T* x, const T* values, const I* index, const __grid_constant__ Layout l, i64 length, i64 stride,
                      i64 step, i64 value_step) {
    EACH(i, l.rows * length) {
        i64 p = i % length, last = -1, line[3];
        locate(l.kept, i / length, line);
        WIDE(T) total = 0;
        for (i64 k = 0; k < l.width; ++k)
            if (inside(index[line[0] + k * step], length, 0) == p) {
                last = k;
                if (ADD) total += (WIDE(T))values[line[1] + k * value_step];
            }
        T* to = x + line[2] + p * stride;
        if (last >= 0) *to = ADD ? (T)((WIDE(T))*to + total) : values[line[1] + last * value_step];
    }
}

// What atomics exchange for an element.
template <int BYTES> struct Word { typedef u64 type; };
template <> struct Word<4> { typedef u32 type; }; template <> struct Word<2> { typedef u16 type; };

// The bits of an element as a number that grows with its value. Numbers that compare as equal, like 0 and -0, have an order, too.
template <typename T, typename W>
__device__ __forceinline__ i64 order_of(W bits) {
    i64 whole = (i64)((u64)bits << (64 - 8 * sizeof(W)));
    return whole < 0 && (WIDE(T))0.5f != 0 ? whole ^ highest<i64>() : whole;
}

// Is v larger than what is there, or smaller? NaN is both.
template <bool LARGEST, typename T, typename Both>
__device__ __forceinline__ bool beats(const Both& v, const Both& there) {
    i64 mine = order_of<T>(v.bits), other = order_of<T>(there.bits);
    return there.value == there.value && (v.value != v.value || (LARGEST ? mine > other : mine < other));
}

// Replaces an element by a value that beats it. Others may do so at the same time: the best stays, whatever the order.
template <bool LARGEST, typename T>
__device__ __forceinline__ void contend(T* to, T v) {
    typedef typename Word<sizeof(T)>::type W;
    union Both {
        T value;
        W bits;
        __device__ Both() {}
    } there, made;
    made.value = v;
    there.bits = *(volatile W*)to;
    while (beats<LARGEST, T>(made, there)) {
        W before = atomicCAS((W*)to, there.bits, made.bits);
        if (before == there.bits) break;
        there.bits = before;
    }
}

// Sets x[.., index[.., i, ..], ..] to the extreme of itself and all values[.., i, ..]. Tensors 0, 1 and 2 of the axes, which are
// those of the index, are the index, the values, and x without the dimension.
template <typename T, typename I, bool LARGEST>
__global__ void extreme_along(T* x, const T* values, const I* index, const __grid_constant__ Axes axes, i64 n, i64 length,
                              i64 stride) {
    EACH(i, n) {
        i64 here[3];
        locate(axes, i, here);
        i64 p = inside(index[here[0]], length, 0);
        if (p >= 0) contend<LARGEST>(x + here[2] + p * stride, values[here[1]]);
    }
}

// A block adds to x[.., p, ..] the values[.., k, ..] of every k whose position is p; the layout is that of `put`.
template <typename T, typename I>
__global__ void add_at(T* x, const T* values, const I* index, const __grid_constant__ Layout l, i64 length, i64 stride,
                       i64 back) {
    i64 p = blockIdx.x, place[2];
    for (i64 r = threadIdx.x; r - threadIdx.x < l.rows; r += 256) {
        i64 here[3] = {};
        if (r < l.rows) locate(l.kept, r, here);
        WIDE(T) total = 0;
        bool some = false;
        each_match(l.width, [&](i64 k) { return inside(index[at(l.folded, k)], length, back) == p; },
                   [&](i64 start, const u16* found, int all) {
            for (int k = 0; k < all && r < l.rows; k += 4) {
                T next[4];
#pragma unroll
                for (int m = 0; m < 4; ++m) {
                    if (k + m >= all) break;
                    locate(l.folded, start + found[k + m], place);
                    next[m] = values[here[1] + place[1]];
                }
#pragma unroll
                for (int m = 0; m < 4; ++m)
                    if (k + m < all) total += (WIDE(T))next[m];
            }
            some = true;
        });
        T* to = x + here[2] + p * stride;
        if (some && r < l.rows) *to = (T)((WIDE(T))*to + total);
    }
}
