// Optimizer updates of many parameters in one launch, in place, one pass.
//
// Traffic in bytes, n elements of s: SGD reads 2 n s and writes n s, with momentum 3 n s and 2 n s; Adam reads 4 n s and
// writes 3 n s; 16 bytes at a time, each tensor's tail by elements. The table of tensors travels with the launch. SGD as in
// Sutskever et al., ICML 2013; Adam as in Kingma and Ba, arXiv:1412.6980; decoupled weight decay as in Loshchilov and
// Hutter, arXiv:1711.05101.

#include "common.cuh"

// Up to 64 parameters with their gradients and moments (0 for none), and the first block of each.
struct Group {
    i64 count, first[64], sizes[64];
    u64 tensors[4][64];
};

// Elements of a block: 256 threads, 16 each.
#define CHUNK 4096

// Which tensor the block works on.
__device__ __forceinline__ int owner(const Group& group) {
    int low = 0, high = (int)group.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (group.first[middle] <= blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return low;
}

// Update::of(param, grad, first moment, second moment, how), on neighbours in one access where all tensors are aligned.
template <typename Update, typename T, typename How>
__device__ __forceinline__ void update(const Group& group, const How& how) {
    typedef WIDE(T) A;
    const int N = 16 / sizeof(T);
    int tensor = owner(group);
    i64 start = (blockIdx.x - group.first[tensor]) * CHUNK, n = group.sizes[tensor];
    i64 end = start + CHUNK < n ? start + CHUNK : n;
    T *p = (T*)group.tensors[0][tensor], *m = (T*)group.tensors[2][tensor], *v = (T*)group.tensors[3][tensor];
    const T* g = (const T*)group.tensors[1][tensor];
    bool aligned = !(((u64)p | (u64)g | (u64)m | (u64)v) & 15);
    i64 whole = aligned ? end - (end - start) % N : start;
    for (i64 i = start + threadIdx.x * N; i < whole; i += 256 * N) {
        Pack<T, N> ps = *(Pack<T, N>*)(p + i), gs = *(const Pack<T, N>*)(g + i), ms, vs;
        if (m) ms = *(Pack<T, N>*)(m + i);
        if (v) vs = *(Pack<T, N>*)(v + i);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A a = (A)ps.of[k], b = m ? (A)ms.of[k] : (A)0, c = v ? (A)vs.of[k] : (A)0;
            Update::of(a, (A)gs.of[k], b, c, how);
            ps.of[k] = (T)a;
            ms.of[k] = (T)b;
            vs.of[k] = (T)c;
        }
        *(Pack<T, N>*)(p + i) = ps;
        if (m) *(Pack<T, N>*)(m + i) = ms;
        if (v) *(Pack<T, N>*)(v + i) = vs;
    }
    for (i64 i = whole + threadIdx.x; i < end; i += 256) {
        A a = (A)p[i], b = m ? (A)m[i] : (A)0, c = v ? (A)v[i] : (A)0;
        Update::of(a, (A)g[i], b, c, how);
        p[i] = (T)a;
        if (m) m[i] = (T)b;
        if (v) v[i] = (T)c;
    }
}

struct SgdHow {
    double rate, momentum, dampening, decay;
    i64 nesterov, maximize, first;
};

struct Sgd {
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A& m, A&, const SgdHow& how) {
        A d = (how.maximize ? -g : g) + (A)how.decay * p;
        if (how.momentum != 0) {
            m = how.first ? d : (A)how.momentum * m + (A)(1 - how.dampening) * d;
            d = how.nesterov ? d + (A)how.momentum * m : m;
        }
        p -= (A)how.rate * d;
    }
};

struct AdamHow {
    double rate, correction, root, beta1, beta2, eps, decay;
    i64 decoupled, maximize;
};

struct Adam {
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A& m, A& v, const AdamHow& how) {
        if (how.maximize) g = -g;
        if (how.decoupled) p *= (A)(1 - how.rate * how.decay);
        else g += (A)how.decay * p;
        m = (A)how.beta1 * m + (A)(1 - how.beta1) * g;
        v = (A)how.beta2 * v + (A)(1 - how.beta2) * g * g;
        p -= (A)(how.rate / how.correction) * (m / (sqrt(v) * (A)how.root + (A)how.eps));
    }
};

template <typename T>
__global__ void sgd(const __grid_constant__ Group group, const __grid_constant__ SgdHow how) {
    update<Sgd, T>(group, how);
}

template <typename T>
__global__ void adam(const __grid_constant__ Group group, const __grid_constant__ AdamHow how) {
    update<Adam, T>(group, how);
}
