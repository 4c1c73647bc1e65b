// Cross-entropy of rows of logits against class indices, forward and backward, one pass each, one warp a row.
//
// Traffic in bytes, N rows of C elements of s: forward reads N C s and N labels, writes a loss and a weight a row (2 N s),
// which one block then sums in a fixed order; backward reads N C s and N labels twice (the sum of weights, the rows) and
// writes N C s. A label that is no class gives NaN: the host cannot be asked without waiting for it.

// NVRTC has no math.h.
template <typename T>
__device__ __forceinline__ T infinity() { return (T)__int_as_float(0x7f800000); }

template <typename T>
__device__ __forceinline__ T not_a_number() { return (T)__int_as_float(0x7fc00000); }

template <typename T>
__device__ __forceinline__ T warp_max(T v) {
    for (int offset = 16; offset; offset >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

template <typename T>
__device__ __forceinline__ T warp_sum(T v) {
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

// A row's largest logit, and the sum of exp(logit - largest).
template <typename T>
__device__ __forceinline__ void exponentials(const T* x, int classes, int lane, T& top, T& total) {
    top = -infinity<T>();
    for (int c = lane; c < classes; c += 32) top = max(top, x[c]);
    top = warp_max(top);
    total = 0;
    for (int c = lane; c < classes; c += 32) total += exp(x[c] - top);
    total = warp_sum(total);
}

template <typename T>
__device__ __forceinline__ T weight_of(long long label, const T* weight, int classes, long long ignored) {
    if (label == ignored) return (T)0;
    if (label < 0 || label >= classes) return not_a_number<T>();
    return weight ? weight[label] : (T)1;
}

// Losses and weights of the rows, both scaled for nothing yet.
template <typename T>
__global__ void cross_entropy_rows(const T* logits, const long long* target, const T* weight, T* losses, T* weights,
                                   long long rows, int classes, long long ignored) {
    long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    const T* x = logits + row * classes;
    T top, total;
    exponentials(x, classes, lane, top, total);
    if (lane) return;
    long long label = target[row];
    T w = weight_of(label, weight, classes, ignored);
    weights[row] = w;
    // NaN is no label to read at; 0 times an infinite loss must not spoil the sum.
    losses[row] = w == (T)0 ? (T)0 : isnan(w) ? w : w * (log(total) + top - x[label]);
}

// One block: sum or mean of the rows, in an order that does not change from run to run.
template <typename T>
__global__ void cross_entropy_reduce(const T* losses, const T* weights, T* out, long long rows, int mean) {
    __shared__ double sums[2][256];
    double loss = 0, weight = 0;
    for (long long i = threadIdx.x; i < rows; i += 256) {
        loss += losses[i];
        weight += weights[i];
    }
    sums[0][threadIdx.x] = loss;
    sums[1][threadIdx.x] = weight;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half) {
            sums[0][threadIdx.x] += sums[0][threadIdx.x + half];
            sums[1][threadIdx.x] += sums[1][threadIdx.x + half];
        }
        __syncthreads();
    }
    if (!threadIdx.x) *out = (T)(mean ? sums[0][0] / sums[1][0] : sums[0][0]);
}

// One block: the whole weight, for the mean's gradient.
template <typename T>
__global__ void whole_weight(const long long* target, const T* weight, T* out, long long rows, int classes,
                             long long ignored) {
    __shared__ double sums[256];
    double total = 0;
    for (long long i = threadIdx.x; i < rows; i += 256) total += weight_of(target[i], weight, classes, ignored);
    sums[threadIdx.x] = total;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (!threadIdx.x) *out = (T)sums[0];
}

// (softmax(logits) - onehot(target)) * dy * weight [/ whole]
template <typename T>
__global__ void cross_entropy_grad(const T* dy, const T* logits, const long long* target, const T* weight, const T* whole,
                                   T* out, long long rows, int classes, long long ignored, int each) {
    long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    const T* x = logits + row * classes;
    long long label = target[row];
    T scale = weight_of(label, weight, classes, ignored) * dy[each ? row : 0];
    if (whole) scale /= *whole;
    T top, total;
    exponentials(x, classes, lane, top, total);
    for (int c = lane; c < classes; c += 32)
        out[row * classes + c] = scale == (T)0 ? (T)0 : (exp(x[c] - top) / total - (c == label ? (T)1 : (T)0)) * scale;
}
