// Recurrent layers: everything in a step except its matrix product, which the host launches before or after these kernels.
//
// A thread computes every gate of its elements of the state, so intermediate gate values are not stored. It takes one element, or
// as many neighbours as 16 bytes hold. Elman, Finding Structure in Time, 1990; Hochreiter and Schmidhuber, Long Short-Term Memory,
// 1997; Cho et al., arXiv:1406.1078; one pointwise kernel per step: Appleyard et al., arXiv:1604.01946.
//
// Traffic in bytes of a step, n elements of s in a state: rnn reads 2 n s and writes n s, its gradient reads 3 n s and writes
// n s; lstm reads 9 n s and writes 6 n s (7 in the last step), its gradient reads 9 n s and writes 5 n s; gru reads 7 n s (and its
// bias) and writes 5 n s, its gradient reads 7 n s and writes 7 n s.

#include "common.cuh"

// Computed with tanh, since exp(-x) would overflow for large negative x.
template <typename A> __device__ __forceinline__ A sigmoid(A x) { return (A)0.5 * tanh((A)0.5 * x) + (A)0.5; }

// The sample that element `at` of a state belongs to: a row of `size` elements, and of `size` for each gate.
__device__ __forceinline__ i64 row_of(i64 at, int size) { return at >> 32 ? at / size : (i64)((u32)at / (u32)size); }

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> read(const T* x, i64 at) { return *(const Pack<T, N>*)(x + at); }
template <int N, typename T>
__device__ __forceinline__ void write(T* x, i64 at, const Pack<T, N>& of) { *(Pack<T, N>*)(x + at) = of; }

// Zeros if the array is null.
template <int N, typename T>
__device__ __forceinline__ Pack<T, N> read_or_zero(const T* x, i64 at) {
    if (x) return read<N>(x, at);
    Pack<T, N> none;
#pragma unroll
    for (int k = 0; k < N; ++k) none.of[k] = (T)0.0f;
    return none;
}

// G gates of N elements each; the gates are `size` apart.
template <int N, int G, typename T>
__device__ __forceinline__ void read_gates(const T* x, i64 at, int size, Pack<T, N> (&gates)[G]) {
#pragma unroll
    for (int g = 0; g < G; ++g) gates[g] = read<N>(x, at + g * (i64)size);
}

template <int N, int G, typename T>
__device__ __forceinline__ void write_gates(T* x, i64 at, int size, const Pack<T, N> (&gates)[G]) {
#pragma unroll
    for (int g = 0; g < G; ++g) write<N>(x, at + g * (i64)size, gates[g]);
}

// out, which holds the contribution of the state, becomes tanh(given + out), or relu.
template <typename T, int N, bool Relu>
__global__ void rnn(const T* given, T* out, i64 count) {
    typedef WIDE(T) A;
    EACH(i, count) {
        Pack<T, N> x = read<N>(given, i * N), h = read<N>(out, i * N);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A sum = (A)x.of[k] + (A)h.of[k];
            h.of[k] = (T)(Relu ? Most::of(sum, (A)0) : tanh(sum));
        }
        write<N>(out, i * N, h);
    }
}

template <typename T, int N, bool Relu>
__global__ void rnn_grad(const T* dy, const T* dh, const T* out, T* dgiven, i64 count) {
    typedef WIDE(T) A;
    EACH(i, count) {
        Pack<T, N> g = read<N>(dy, i * N), back = read_or_zero<N>(dh, i * N), h = read<N>(out, i * N);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A d = (A)g.of[k] + (A)back.of[k], y = (A)h.of[k];
            g.of[k] = (T)(Relu ? (y <= 0 ? (A)0 : d) : d * ((A)1 - y * y));
        }
        write<N>(dgiven, i * N, g);
    }
}

// Gates i, f, g, o of given + product; c' = f c + i g, h' = o tanh(c'). `last`, null but for the last step, gets c' too.
template <typename T, int N>
__global__ void lstm(const T* given, const T* product, const T* c, T* gates, T* cells, T* out, T* last, i64 count,
                     int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, first = at + 3 * row_of(at, size) * size;
        Pack<T, N> x[4], y[4], cell = read<N>(c, at), h;
        read_gates(given, first, size, x);
        read_gates(product, first, size, y);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A in = sigmoid((A)x[0].of[k] + (A)y[0].of[k]), keep = sigmoid((A)x[1].of[k] + (A)y[1].of[k]);
            A fresh = tanh((A)x[2].of[k] + (A)y[2].of[k]), show = sigmoid((A)x[3].of[k] + (A)y[3].of[k]);
            A now = keep * (A)cell.of[k] + in * fresh;
            x[0].of[k] = (T)in, x[1].of[k] = (T)keep, x[2].of[k] = (T)fresh, x[3].of[k] = (T)show;
            cell.of[k] = (T)now;
            h.of[k] = (T)(show * tanh(now));
        }
        write_gates(gates, first, size, x);
        write<N>(cells, at, cell);
        if (last) write<N>(last, at, cell);
        write<N>(out, at, h);
    }
}

// dc, for the last step the cotangent of the last cell state, may share memory with next_dc; dy, dh and dc may be null.
template <typename T, int N>
__global__ void lstm_grad(const T* dy, const T* dh, const T* dc, const T* gates, const T* cells, const T* before, T* dgiven,
                          T* next_dc, i64 count, int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, first = at + 3 * row_of(at, size) * size;
        Pack<T, N> gate[4], to_h = read_or_zero<N>(dy, at), back = read_or_zero<N>(dh, at), to_c = read_or_zero<N>(dc, at);
        Pack<T, N> cell = read<N>(cells, at), was = read<N>(before, at);
        read_gates(gates, first, size, gate);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A in = (A)gate[0].of[k], keep = (A)gate[1].of[k], fresh = (A)gate[2].of[k], show = (A)gate[3].of[k];
            A bent = tanh((A)cell.of[k]), d = (A)to_h.of[k] + (A)back.of[k];
            A whole = (A)to_c.of[k] + d * show * ((A)1 - bent * bent);
            gate[0].of[k] = (T)(whole * fresh * in * ((A)1 - in));
            gate[1].of[k] = (T)(whole * (A)was.of[k] * keep * ((A)1 - keep));
            gate[2].of[k] = (T)(whole * in * ((A)1 - fresh * fresh));
            gate[3].of[k] = (T)(d * bent * show * ((A)1 - show));
            to_c.of[k] = (T)(whole * keep);
        }
        write_gates(dgiven, first, size, gate);
        write<N>(next_dc, at, to_c);
    }
}

// Gates r, z of given + product; n = tanh(given_n + r product_n), h' = n + z (h - n). The state's contribution to n is stored as
// the fourth gate.
template <typename T, int N>
__global__ void gru(const T* given, const T* product, const T* bias, const T* h, T* gates, T* out, i64 count, int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, row = row_of(at, size), first = at + 2 * row * size;
        Pack<T, N> x[3], y[3], gate[4], state = read<N>(h, at), b[3];
        read_gates(given, first, size, x);
        read_gates(product, first, size, y);
#pragma unroll
        for (int g = 0; g < 3; ++g) b[g] = read_or_zero<N>(bias, at - row * size + g * (i64)size);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A from_state = (A)y[2].of[k] + (A)b[2].of[k];
            A reset = sigmoid((A)x[0].of[k] + ((A)y[0].of[k] + (A)b[0].of[k]));
            A keep = sigmoid((A)x[1].of[k] + ((A)y[1].of[k] + (A)b[1].of[k]));
            A fresh = tanh((A)x[2].of[k] + reset * from_state);
            gate[0].of[k] = (T)reset, gate[1].of[k] = (T)keep, gate[2].of[k] = (T)fresh, gate[3].of[k] = (T)from_state;
            state.of[k] = (T)(fresh + keep * ((A)state.of[k] - fresh));
        }
        write_gates(gates, first + row * size, size, gate);
        write<N>(out, at, state);
    }
}

// The gradient of the previous state has two parts: next_dh, which bypasses the product, and the product of this step's slopes,
// which is added to it. dh, null for the last step, may share memory with next_dh.
template <typename T, int N>
__global__ void gru_grad(const T* dy, const T* dh, const T* gates, const T* before, T* dgiven, T* slopes, T* next_dh, i64 count,
                         int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, row = row_of(at, size), first = at + 2 * row * size;
        Pack<T, N> gate[4], to[3], d = read<N>(dy, at), back = read_or_zero<N>(dh, at);
        Pack<T, N> was = read<N>(before, at), from_state;
        read_gates(gates, first + row * size, size, gate);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A reset = (A)gate[0].of[k], keep = (A)gate[1].of[k], fresh = (A)gate[2].of[k];
            A whole = (A)d.of[k] + (A)back.of[k];
            A slope = whole * ((A)1 - keep) * ((A)1 - fresh * fresh);
            to[0].of[k] = (T)(slope * (A)gate[3].of[k] * reset * ((A)1 - reset));
            to[1].of[k] = (T)(whole * ((A)was.of[k] - fresh) * keep * ((A)1 - keep));
            to[2].of[k] = (T)slope;
            from_state.of[k] = (T)(slope * reset);
            d.of[k] = (T)(whole * keep);
        }
        write_gates(dgiven, first, size, to);
        to[2] = from_state;
        write_gates(slopes, first, size, to);
        write<N>(next_dh, at, d);
    }
}
