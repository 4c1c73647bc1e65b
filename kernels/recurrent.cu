// Recurrent layers: everything in a step except its matrix product, which the host launches before or after these kernels; or with
// the product, for states so small that it is not worth a launch.
//
// A thread computes every gate of its elements of the state, so intermediate gate values are not stored. It takes one element, or
// as many neighbors as 16 bytes hold. Elman, Finding Structure in Time, 1990; Hochreiter and Schmidhuber, Long Short-Term Memory,
// 1997; Cho et al., arXiv:1406.1078; one pointwise kernel per step: Appleyard et al., arXiv:1604.01946.
//
// Traffic in bytes of a step, n elements of s in a state: rnn reads 2 n s and writes n s, its gradient reads 3 n s and writes
// n s; lstm reads 9 n s and writes 6 n s (7 in the last step), its gradient reads 9 n s and writes 5 n s; gru reads 7 n s (and its
// bias) and writes 5 n s, its gradient reads 7 n s and writes 5 n s. With the product, rnn reads 2 n s, lstm 6 n s, and gru 4 n s.

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

// -- steps -------------------------------------------------------------------------------------------------------------
// Of N neighbors, from what all gates are given and the product; `at` is their place in a state, `first` that of the first gate.

template <typename T, int N, bool Relu, typename A>
__device__ __forceinline__ void rnn_step(const A (&sum)[1][N], T* out, i64 at) {
    Pack<T, N> h;
#pragma unroll
    for (int k = 0; k < N; ++k) h.of[k] = (T)(Relu ? Most::of(sum[0][k], (A)0) : tanh(sum[0][k]));
    write<N>(out, at, h);
}

// Gates i, f, g, o; c' = f c + i g, h' = o tanh(c'). `last`, null but for the last step, gets c' too.
template <typename T, int N, typename A>
__device__ __forceinline__ void lstm_step(const A (&sum)[4][N], const T* c, T* gates, T* cells, T* out, T* last, i64 at, i64 first,
                                          int size) {
    Pack<T, N> x[4], cell = read<N>(c, at), h;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        A in = sigmoid(sum[0][k]), keep = sigmoid(sum[1][k]), fresh = tanh(sum[2][k]), show = sigmoid(sum[3][k]);
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

// Gates r, z; n = tanh(given_n + r product_n), h' = n + z (h - n). The state's contribution to n is stored as the fourth gate.
template <typename T, int N, typename A>
__device__ __forceinline__ void gru_step(const A (&sum)[3][N], const Pack<T, N>& given, const T* h, T* gates, T* out, i64 at,
                                         i64 first, int size) {
    Pack<T, N> gate[4], state = read<N>(h, at);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        A reset = sigmoid(sum[0][k]), keep = sigmoid(sum[1][k]), from_state = sum[2][k];
        A fresh = tanh((A)given.of[k] + reset * from_state);
        gate[0].of[k] = (T)reset, gate[1].of[k] = (T)keep, gate[2].of[k] = (T)fresh, gate[3].of[k] = (T)from_state;
        state.of[k] = (T)(fresh + keep * ((A)state.of[k] - fresh));
    }
    write_gates(gates, first, size, gate);
    write<N>(out, at, state);
}

// out holds the product.
template <typename T, int N, bool Relu>
__global__ void rnn(const T* given, T* out, i64 count) {
    typedef WIDE(T) A;
    EACH(i, count) {
        Pack<T, N> x = read<N>(given, i * N), h = read<N>(out, i * N);
        A sum[1][N];
#pragma unroll
        for (int k = 0; k < N; ++k) sum[0][k] = (A)x.of[k] + (A)h.of[k];
        rnn_step<T, N, Relu>(sum, out, i * N);
    }
}

template <typename T, int N>
__global__ void lstm(const T* given, const T* product, const T* c, T* gates, T* cells, T* out, T* last, i64 count, int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, first = at + 3 * row_of(at, size) * size;
        Pack<T, N> x[4], y[4];
        A sum[4][N];
        read_gates(given, first, size, x);
        read_gates(product, first, size, y);
#pragma unroll
        for (int k = 0; k < 4 * N; ++k) sum[k / N][k % N] = (A)x[k / N].of[k % N] + (A)y[k / N].of[k % N];
        lstm_step<T, N>(sum, c, gates, cells, out, last, at, first, size);
    }
}

template <typename T, int N>
__global__ void gru(const T* given, const T* product, const T* bias, const T* h, T* gates, T* out, i64 count, int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, row = row_of(at, size), first = at + 2 * row * size;
        Pack<T, N> x[3], y[3];
        A sum[3][N];
        read_gates(given, first, size, x);
        read_gates(product, first, size, y);
#pragma unroll
        for (int g = 0; g < 3; ++g) {
            Pack<T, N> b = read_or_zero<N>(bias, at - row * size + g * (i64)size);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                sum[g][k] = (A)y[g].of[k] + (A)b.of[k];
                if (g < 2) sum[g][k] += (A)x[g].of[k];
            }
        }
        gru_step<T, N>(sum, x[2], h, gates, out, at, first + row * size, size);
    }
}

// -- steps of small states, with their product ---------------------------------------------------------------------------

// Adds the product of a state of at most 32 elements, a multiple of 4 and at least 8, and the weight of G gates to the sums of each
// row, which are 0 unless `begin` sets them and which `end` takes. A thread has 4 neighbors of each gate of several rows, so that
// it reads shared memory less often than it multiplies. Such a product takes longer alone than all else in a step.
template <int G, typename T, typename Begin, typename End>
__device__ __forceinline__ void small_step(const T* weight, const T* h, i64 rows, int size, Begin begin, End end) {
    typedef Pack<float, 4> Four;
    const int M = G < 4 ? 4 : 3;  // rows; of four gates, more would not fit in the registers
    __shared__ Four weights[32 * (G * 8 + 1)], states[1536];
    int near = size / 4, teams = 256 / near, team = (int)threadIdx.x / near, own = (int)threadIdx.x - team * near;
    int across = G * near + 1, parts = (size + 7) / 8;
    // A warp turns 4 rows of 8: whole sectors and, since rows in shared memory are one access longer, all banks.
    for (int i = threadIdx.x; i < G * near * parts * 32; i += 256) {
        int row = i / 32 / parts * 4 + i % 32 / 8, k = i / 32 % parts * 8 + i % 8;
        if (k < size) ((float*)weights)[k * 4 * across + row] = (float)weight[row * size + k];
    }
    for (i64 from = (i64)blockIdx.x * M * teams; from < rows; from += (i64)gridDim.x * M * teams) {
        float sum[M][G][4];
        __syncthreads();  // until all threads have read the states before
#pragma unroll
        for (int m = 0; m < M; ++m) {
            i64 row = from + m * teams + team;
            Four state = {};
#pragma unroll
            for (int k = 0; k < 4 * G; ++k) sum[m][k / 4][k % 4] = 0;
            if (team < teams && row < rows) {
                Pack<T, 4> found = read<4>(h, row * size + 4 * own);
#pragma unroll
                for (int k = 0; k < 4; ++k) state.of[k] = (float)found.of[k];
                begin(row, 4 * own, sum[m]);
            }
            // One apart from a multiple of 8, so that the banks of several rows differ.
            if (team < teams) states[(m * teams + team) * (near + 1) + own] = state;
        }
        __syncthreads();
        if (team < teams)
            for (int k = 0; k < size; ++k) {
                float state[M];
#pragma unroll
                for (int m = 0; m < M; ++m) state[m] = ((float*)states)[(m * teams + team) * (size + 4) + k];
#pragma unroll
                for (int g = 0; g < G; ++g) {
                    Four by = weights[k * across + g * near + own];
#pragma unroll
                    for (int i = 0; i < 4 * M; ++i) sum[i / 4][g][i % 4] += state[i / 4] * by.of[i % 4];
                }
            }
#pragma unroll
        for (int m = 0; m < M; ++m) {
            i64 row = from + m * teams + team;
            if (team < teams && row < rows) end(row, 4 * own, sum[m]);
        }
    }
}

// Sets sums to the first gates that a row is given.
template <int G, int All, typename T>
__device__ __forceinline__ void set_given(const T* given, i64 at, int size, float (&sum)[All][4]) {
    Pack<T, 4> x[G];
    read_gates(given, at, size, x);
#pragma unroll
    for (int k = 0; k < 4 * G; ++k) sum[k / 4][k % 4] = (float)x[k / 4].of[k % 4];
}

template <typename T, bool Relu>
__global__ void __launch_bounds__(256, 2) rnn_small(const T* given, const T* weight, const T* h, T* out, i64 rows, int size) {
    small_step<1>(weight, h, rows, size,
                  [&](i64 row, int at, float (&sum)[1][4]) { set_given<1>(given, row * size + at, size, sum); },
                  [&](i64 row, int at, float (&sum)[1][4]) { rnn_step<T, 4, Relu>(sum, out, row * size + at); });
}

template <typename T>
__global__ void __launch_bounds__(256, 3) lstm_small(const T* given, const T* weight, const T* h, const T* c, T* gates, T* cells,
                                                     T* out, T* last, i64 rows, int size) {
    small_step<4>(weight, h, rows, size,
                  [&](i64 row, int at, float (&sum)[4][4]) { set_given<4>(given, row * 4 * size + at, size, sum); },
                  [&](i64 row, int at, float (&sum)[4][4]) {
                      lstm_step<T, 4>(sum, c, gates, cells, out, last, row * size + at, row * 4 * size + at, size);
                  });
}

template <typename T>
__global__ void __launch_bounds__(256, 2) gru_small(const T* given, const T* weight, const T* bias, const T* h, T* gates, T* out,
                                                    i64 rows, int size) {
    small_step<3>(weight, h, rows, size,
                  [&](i64 row, int at, float (&sum)[3][4]) {
                      set_given<2>(given, row * 3 * size + at, size, sum);
                  },
                  [&](i64 row, int at, float (&sum)[3][4]) {
#pragma unroll
                      for (int g = 0; g < 3 && bias; ++g) {
                          Pack<T, 4> b = read<4>(bias, at + g * (i64)size);
#pragma unroll
                          for (int k = 0; k < 4; ++k) sum[g][k] += (float)b.of[k];
                      }
                      gru_step<T, 4>(sum, read<4>(given, row * 3 * size + at + 2 * size), h, gates, out, row * size + at,
                                     row * 4 * size + at, size);
                  });
}

// -- gradients -------------------------------------------------------------------------------------------------------------

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

// The gradient of the previous state has two parts: next_dh, which bypasses the product, and the product of this step's slopes,
// those of what the state gives, which is added to it. What is given has the same slopes but for the third gate, which are dn.
// dh, null for the last step, may share memory with next_dh.
template <typename T, int N>
__global__ void gru_grad(const T* dy, const T* dh, const T* gates, const T* before, T* slopes, T* dn, T* next_dh, i64 count,
                         int size) {
    typedef WIDE(T) A;
    EACH(i, count) {
        i64 at = i * N, row = row_of(at, size), first = at + 2 * row * size;
        Pack<T, N> gate[4], to[3], d = read<N>(dy, at), back = read_or_zero<N>(dh, at);
        Pack<T, N> was = read<N>(before, at), given;
        read_gates(gates, first + row * size, size, gate);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A reset = (A)gate[0].of[k], keep = (A)gate[1].of[k], fresh = (A)gate[2].of[k];
            A whole = (A)d.of[k] + (A)back.of[k];
            A slope = whole * ((A)1 - keep) * ((A)1 - fresh * fresh);
            to[0].of[k] = (T)(slope * (A)gate[3].of[k] * reset * ((A)1 - reset));
            to[1].of[k] = (T)(whole * ((A)was.of[k] - fresh) * keep * ((A)1 - keep));
            to[2].of[k] = (T)(slope * reset);
            given.of[k] = (T)slope;
            d.of[k] = (T)(whole * keep);
        }
        write_gates(slopes, first, size, to);
        write<N>(dn, at, given);
        write<N>(next_dh, at, d);
    }
}
