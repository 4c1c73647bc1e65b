// More functions for the elementwise kernels, named after their ops. C is the type of the arithmetic.

template <typename C> __device__ __forceinline__ C towards_zero(C x) { return trunc(x); }
template <> __device__ __forceinline__ i64 towards_zero(i64 x) { return x; }
template <typename C> __device__ __forceinline__ C rest_of(C x, C y) { return fmod(x, y); }
template <> __device__ __forceinline__ i64 rest_of(i64 x, i64 y) { return y == 0 || y == -1 ? 0 : x % y; }

UNARY(Exp2, exp2(x))
UNARY(Arcsin, asin(x))
UNARY(Arccos, acos(x))
UNARY(Arcsinh, asinh(x))
UNARY(Arccosh, acosh(x))
UNARY(Arctanh, atanh(x))
UNARY(Erfc, erfc(x))
UNARY(Sinc, x == 0 ? (C)1 : sin((C)3.141592653589793 * x) / ((C)3.141592653589793 * x))
UNARY(Logit, log(x / ((C)1 - x)))
UNARY(Trunc, towards_zero(x))
UNARY(Frac, x - trunc(x))
BINARY(Fmod, rest_of(x, y))
BINARY(Fmax, x >= y || y != y ? x : y)
BINARY(Fmin, x <= y || y != y ? x : y)
BINARY(Arctan2, atan2(x, y))
BINARY(Hypot, hypot(x, y))

// Bitwise functions of integers, computed in 64 bits. A shift by a negative number or by more than 63 shifts out every bit: left
// gives 0, right gives the sign.
UNARY(BitwiseNot, ~x)
UNARY(BoolNot, x == 0)
BINARY(BitwiseAnd, x & y)
BINARY(BitwiseOr, x | y)
BINARY(BitwiseXor, x ^ y)
BINARY(BitwiseLeftShift, y < 0 || y > 63 ? 0 : (i64)((u64)x << y))
BINARY(BitwiseRightShift, x >> (y < 0 || y > 63 ? 63 : y))

#define TERNARY(Name, expression) \
    struct Name { template <typename C> static __device__ __forceinline__ C of(C x, C y, C z) { return expression; } };

template <typename C> __device__ __forceinline__ C larger(C x, C y) { return x > y ? x : y; }
template <typename C> __device__ __forceinline__ C squashed(C x) { return (C)0.5 * tanh((C)0.5 * x) + (C)0.5; }
// log(1 + exp(x)) without overflow.
template <typename C> __device__ __forceinline__ C log_one_exp(C x) { return larger(x, (C)0) + log1p(exp(-size_of(x))); }
template <typename C> __device__ __forceinline__ C log_sum_exp(C x, C y) {
    return x == y ? x + (C)0.6931471805599453 : x != x || y != y ? x + y : larger(x, y) + log1p(exp(-size_of(x - y)));
}

BINARY(Logaddexp, log_sum_exp(x, y))
BINARY(Xlogy, x == 0 && y == y ? (C)0 : x * log(y))
BINARY(Xlog1py, x == 0 && y == y ? (C)0 : x * log1p(y))
TERNARY(Lerp, size_of(z) < (C)0.5 ? x + z * (y - x) : y - (y - x) * ((C)1 - z))
// x where the mask is not set, else the number.
TERNARY(MaskedFill, y != 0 ? z : x)

UNARY(Silu, x * squashed(x))
BINARY(SiluGrad, x * squashed(y) * ((C)1 + y * ((C)1 - squashed(y))))
UNARY(Mish, x * tanh(log_one_exp(x)))
template <typename C> __device__ __forceinline__ C mish_slope(C x) {
    C t = tanh(log_one_exp(x));
    return t + x * squashed(x) * ((C)1 - t * t);
}
BINARY(MishGrad, x * mish_slope(y))
UNARY(Softsign, x / ((C)1 + size_of(x)))
BINARY(SoftsignGrad, x / (((C)1 + size_of(y)) * ((C)1 + size_of(y))))
UNARY(Logsigmoid, -log_one_exp(-x))
BINARY(LogsigmoidGrad, x * squashed(-y))
template <typename C> __device__ __forceinline__ C sixth(C x) {
    x += (C)3;
    return (x < 0 ? (C)0 : x > 6 ? (C)6 : x) / (C)6;
}
UNARY(Hardsigmoid, sixth(x))
BINARY(HardsigmoidGrad, y > -3 && y < 3 ? x / (C)6 : (C)0)
UNARY(Hardswish, x * sixth(x))
BINARY(HardswishGrad, y <= -3 ? (C)0 : y < 3 ? x * (y / (C)3 + (C)0.5) : x)
BINARY(LeakyRelu, x > 0 ? x : x * y)
TERNARY(LeakyReluGrad, y > 0 ? x : x * z)
BINARY(Hardshrink, size_of(x) <= y ? (C)0 : x)
BINARY(Softshrink, size_of(x) <= y ? (C)0 : x - copysign(y, x))
TERNARY(ShrinkGrad, size_of(y) <= z ? (C)0 : x)
TERNARY(Threshold, x <= y ? z : x)
TERNARY(Hardtanh, Least::of(Most::of(x, y), z))

struct Addcmul {
    template <typename C> static __device__ __forceinline__ C of(C x, C y, C z, C value) { return x + value * y * z; }
};
struct Addcdiv {
    template <typename C> static __device__ __forceinline__ C of(C x, C y, C z, C value) { return x + value * (y / z); }
};
struct NanToNum {
    template <typename C> static __device__ __forceinline__ C of(C x, C nan, C high, C low) {
        return x != x ? nan : x == infinity<C>() ? high : x == -infinity<C>() ? low : x;
    }
};
struct HardtanhGrad {
    template <typename C> static __device__ __forceinline__ C of(C dy, C x, C low, C high) {
        return x <= low || x >= high ? (C)0 : dy;
    }
};
// The part below 0: `factor` is scale * alpha; `slope` is the scale above 0.
struct Elu {
    template <typename C> static __device__ __forceinline__ C of(C x, C slope, C factor, C inner) {
        return x > 0 ? slope * x : factor * expm1(x * inner);
    }
};
struct EluGrad {
    template <typename C> static __device__ __forceinline__ C of(C dy, C x, C slope, C factor, C inner) {
        return dy * (x <= 0 ? factor * inner * exp(x * inner) : slope);
    }
};
struct Softplus {
    template <typename C> static __device__ __forceinline__ C of(C x, C beta, C threshold) {
        return x * beta > threshold ? x : log_one_exp(x * beta) / beta;
    }
};
struct SoftplusGrad {
    template <typename C> static __device__ __forceinline__ C of(C dy, C x, C beta, C threshold) {
        return x * beta > threshold ? dy : dy * squashed(x * beta);
    }
};
