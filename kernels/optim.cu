// Optimizer updates of many parameters in one launch, in place, in one pass.
//
// Traffic in bytes, n elements of s: SGD reads 2 n s and writes n s, and each state adds n s to both (Adam 4 n s and
// 3 n s); 16 bytes at a time, each tensor's tail by elements. The table of tensors is a launch argument. SGD as in
// Sutskever et al., ICML 2013; Adam as in Kingma and Ba, arXiv:1412.6980; decoupled weight decay as in Loshchilov and
// Hutter, arXiv:1711.05101; AMSGrad: Reddi, Kale and Kumar, ICLR 2018; Adagrad: Duchi, Hazan and Singer, JMLR 12, 2011;
// RMSprop: Tieleman and Hinton, lecture 6.5, 2012; Adadelta: Zeiler, arXiv:1212.5701; NAdam: Dozat, ICLR workshop, 2016; RAdam:
// Liu et al., arXiv:1908.03265; Lion: Chen et al., arXiv:2302.06675; Adamax: with Adam, section 7.1; Rprop: Riedmiller and
// Braun, ICNN 1993; ASGD: Polyak and Juditsky, SIAM J. Control Optim. 30, 1992.

#include "common.cuh"
#include "tensors.cuh"

// Update::of(param, grad, states, how), on neighbors in one access if all tensors are aligned; an absent state reads as 0.
// `how` is a copy: if its numbers were read from memory, the compiler would have to assume that every store may change them, and
// would read them and divide in double again for each element.
template <typename Update, typename T, typename How>
__device__ __forceinline__ void update(const Group& group, const How how) {
    typedef WIDE(T) A;
    const int N = 16 / sizeof(T), S = Update::states;
    int tensor = owner(group);
    i64 start = (blockIdx.x - group.first[tensor]) * group.chunk, n = group.sizes[tensor];
    i64 end = start + group.chunk < n ? start + group.chunk : n;
    T *p = (T*)group.tensors[0][tensor], *s[S];
    const T* g = (const T*)group.tensors[1][tensor];
    u64 bits = (u64)p | (u64)g;
#pragma unroll
    for (int j = 0; j < S; ++j) {
        s[j] = (T*)group.tensors[2 + j][tensor];
        bits |= (u64)s[j];
    }
    i64 whole = bits & 15 ? start : end - (end - start) % N;
    for (i64 i = start + threadIdx.x * N; i < whole; i += 256 * N) {
        Pack<T, N> ps = *(Pack<T, N>*)(p + i), gs = *(const Pack<T, N>*)(g + i), of[S];
#pragma unroll
        for (int j = 0; j < S; ++j)
            if (s[j]) of[j] = *(Pack<T, N>*)(s[j] + i);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A a = (A)ps.of[k], b[S];
#pragma unroll
            for (int j = 0; j < S; ++j) b[j] = s[j] ? (A)of[j].of[k] : (A)0;
            Update::of(a, (A)gs.of[k], b, how);
            ps.of[k] = (T)a;
#pragma unroll
            for (int j = 0; j < S; ++j) of[j].of[k] = (T)b[j];
        }
        *(Pack<T, N>*)(p + i) = ps;
#pragma unroll
        for (int j = 0; j < S; ++j)
            if (s[j]) *(Pack<T, N>*)(s[j] + i) = of[j];
    }
    for (i64 i = whole + threadIdx.x; i < end; i += 256) {
        A a = (A)p[i], b[S];
#pragma unroll
        for (int j = 0; j < S; ++j) b[j] = s[j] ? (A)s[j][i] : (A)0;
        Update::of(a, (A)g[i], b, how);
        p[i] = (T)a;
#pragma unroll
        for (int j = 0; j < S; ++j)
            if (s[j]) s[j][i] = (T)b[j];
    }
}

// The gradient as an update uses it. Without a decay it does not depend on the parameter: 0 times infinity would be NaN.
template <typename A, typename How>
__device__ __forceinline__ A taken(A g, A p, const How& how) {
    A d = how.maximize ? -g : g, decay = (A)how.decay;
    return decay != 0 ? d + decay * p : d;
}

// `kept`: there is a moment, even if the momentum is 0 for now.
struct SgdHow {
    double rate, momentum, dampening, decay;
    i64 kept, nesterov, maximize, first;
};

struct Sgd {
    typedef SgdHow How;
    static const int states = 1;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const SgdHow& how) {
        A &m = s[0], d = taken(g, p, how);
        if (how.kept) {
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

// With `Most`, AMSGrad: the root is that of the largest v so far. A v that is NaN stays it.
template <bool Most>
struct AdamOf {
    typedef AdamHow How;
    static const int states = 2 + Most;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const AdamHow& how) {
        A &m = s[0], &v = s[1];
        if (how.decoupled) {
            p *= (A)(1 - how.rate * how.decay);
            if (how.maximize) g = -g;
        } else {
            g = taken(g, p, how);
        }
        m = (A)how.beta1 * m + (A)(1 - how.beta1) * g;
        v = (A)how.beta2 * v + (A)(1 - how.beta2) * g * g;
        if (Most) s[2] = v <= s[2] ? s[2] : v;
        p -= (A)(how.rate / how.correction) * (m / (sqrt(s[Most ? 2 : 1]) * (A)how.root + (A)how.eps));
    }
};

// The parameters of RMSprop, Adagrad and Adadelta; those that an optimizer does not have are 0. `kept`: there is a moment.
struct SquareHow {
    double rate, keep, eps, decay, momentum;
    i64 kept, maximize, centered;
};

struct Rmsprop {
    typedef SquareHow How;
    static const int states = 3;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const SquareHow& how) {
        A &v = s[0], &mean = s[1], &m = s[2], d = taken(g, p, how);
        v = (A)how.keep * v + (A)(1 - how.keep) * d * d;
        if (how.centered) mean += (A)(1 - how.keep) * (d - mean);
        d /= sqrt(how.centered ? v - mean * mean : v) + (A)how.eps;
        if (how.kept) d = m = (A)how.momentum * m + d;
        p -= (A)how.rate * d;
    }
};

struct Adagrad {
    typedef SquareHow How;
    static const int states = 1;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const SquareHow& how) {
        A d = taken(g, p, how);
        s[0] += d * d;
        p -= (A)how.rate * (d / (sqrt(s[0]) + (A)how.eps));
    }
};

struct Adadelta {
    typedef SquareHow How;
    static const int states = 2;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const SquareHow& how) {
        A &v = s[0], &moved = s[1], d = taken(g, p, how);
        v = (A)how.keep * v + (A)(1 - how.keep) * d * d;
        d = d / sqrt(v + (A)how.eps) * sqrt(moved + (A)how.eps);
        moved = (A)how.keep * moved + (A)(1 - how.keep) * d * d;
        p -= (A)how.rate * d;
    }
};

// The parameters of NAdam, RAdam and Lion. A step is rate times (ahead * m + behind * g), over v's root if adaptive is not 0.
struct MeanHow {
    double rate, beta1, beta2, eps, decay, shrink, ahead, behind, root, adaptive;
    i64 maximize;
};

struct Moments {
    typedef MeanHow How;
    static const int states = 2;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const MeanHow& how) {
        A &m = s[0], &v = s[1], d = taken(g, p, how);
        p *= (A)how.shrink;
        m += (A)(1 - how.beta1) * (d - m);
        v = (A)how.beta2 * v + (A)(1 - how.beta2) * d * d;
        A behind = (A)(how.rate * how.behind);
        d = (behind != 0 ? behind * d : (A)0) + (A)(how.rate * how.ahead) * m;
        p -= how.adaptive != 0 ? (A)how.adaptive * (d / (sqrt(v) * (A)how.root + (A)how.eps)) : d;
    }
};

struct Lion {
    typedef MeanHow How;
    static const int states = 1;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const MeanHow& how) {
        A &m = s[0], d = how.maximize ? -g : g, way = (A)how.beta1 * (m - d) + d;
        p = p * (A)how.shrink - (A)how.rate * (A)((way > (A)0) - (way < (A)0));
        m += (A)(1 - how.beta2) * (d - m);
    }
};

// With MeanHow, whose rate is the corrected one. A NaN stays one, as in PyTorch.
struct Adamax {
    typedef MeanHow How;
    static const int states = 2;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const MeanHow& how) {
        A &m = s[0], &u = s[1], d = taken(g, p, how);
        m += (A)(1 - how.beta1) * (d - m);
        A faded = (A)how.beta2 * u, now = (d < 0 ? -d : d) + (A)how.eps;
        u = faded > now || faded != faded ? faded : now;
        p -= (A)how.rate * (m / u);
    }
};

struct RpropHow {
    double smaller, larger, least, most;
    i64 maximize;
};

struct Rprop {
    typedef RpropHow How;
    static const int states = 2;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const RpropHow& how) {
        A &last = s[0], &size = s[1], d = how.maximize ? -g : g, same = d * last;
        size *= same > (A)0 ? (A)how.larger : same < (A)0 ? (A)how.smaller : (A)1;
        size = size < (A)how.least ? (A)how.least : size > (A)how.most ? (A)how.most : size;
        last = same < (A)0 ? (A)0 : d;
        p -= size * (A)((last > (A)0) - (last < (A)0));
    }
};

struct AsgdHow {
    double rate, share, shrink, decay;
    i64 maximize;
};

struct Asgd {
    typedef AsgdHow How;
    static const int states = 1;
    template <typename A>
    static __device__ __forceinline__ void of(A& p, A g, A* s, const AsgdHow& how) {
        A &average = s[0], d = taken(g, p, how);
        p = p * (A)how.shrink - (A)how.rate * d;
        average = how.share == 1 ? p : average + (A)how.share * (p - average);
    }
};

// A learning rate in device memory: half, bfloat, float or double.
__device__ __forceinline__ double rate_at(const void* rate, int kind) {
    return kind == 0 ? (float)*(const half*)rate : kind == 1 ? (float)*(const bfloat*)rate : kind == 2 ? *(const float*)rate
                                                                                         : *(const double*)rate;
}

// An update's numbers for `rate`, if that is `given`, from those for a rate of 1; else it is 1. Not in their own place: NVRTC takes
// a variable that begins as a launch argument for the argument, which does not change.
template <typename How> __device__ __forceinline__ How rated(How how, bool given, double rate) {
    how.rate *= rate;
    return how;
}
__device__ __forceinline__ MeanHow rated(MeanHow how, bool given, double rate) {
    how.rate *= rate;
    how.shrink = given ? 1 - rate * (1 - how.shrink) : how.shrink;
    return how;
}
__device__ __forceinline__ RpropHow rated(RpropHow how, bool given, double rate) { return how; }

// An update's numbers are a launch argument, unless `there` is given: then they are read from that address when the launch runs,
// so a captured launch uses those of each run. So is the rate from `rate`, if that is given.
template <typename Update, typename T>
__global__ void step(const __grid_constant__ Group group, const __grid_constant__ typename Update::How given,
                     const typename Update::How* there, const void* rate, int kind) {
    double by = rate ? rate_at(rate, kind) : 1;
    update<Update, T>(group, rated(there ? *there : given, rate, by));
}
