// Optimizer updates of one parameter, in place, one pass.
//
// Traffic in bytes, n elements of s: SGD reads 2 n s and writes n s, with momentum 3 n s and 2 n s; Adam reads 4 n s and
// writes 3 n s. SGD as in Sutskever et al., ICML 2013; Adam as in Kingma and Ba, arXiv:1412.6980; decoupled weight decay
// as in Loshchilov and Hutter, arXiv:1711.05101.

template <typename T>
__global__ void sgd(T* param, const T* grad, T* moment, long long n, double lr, double momentum, double dampening,
                    double weight_decay, int nesterov, int maximize, int first) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        T p = param[i], d = maximize ? -grad[i] : grad[i];
        d += (T)weight_decay * p;
        if (moment) {
            T m = first ? d : (T)momentum * moment[i] + (T)(1 - dampening) * d;
            moment[i] = m;
            d = nesterov ? d + (T)momentum * m : m;
        }
        param[i] = p - (T)lr * d;
    }
}

template <typename T>
__global__ void adam(T* param, const T* grad, T* mean, T* square, long long n, double lr, double correction, double root,
                     double beta1, double beta2, double eps, double weight_decay, int decoupled, int maximize) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        T p = param[i], g = maximize ? -grad[i] : grad[i];
        if (decoupled) p *= (T)(1 - lr * weight_decay);
        else g += (T)weight_decay * p;
        T m = (T)beta1 * mean[i] + (T)(1 - beta1) * g;
        T v = (T)beta2 * square[i] + (T)(1 - beta2) * g * g;
        mean[i] = m;
        square[i] = v;
        param[i] = p - (T)(lr / correction) * (m / (sqrt(v) * (T)root + (T)eps));
    }
}
