// Tensor cores: a warp adds products of 16 x 8 elements, whose operands it holds in registers, to sums in float.
//
// A word of an operand holds two neighbors in k as half or bfloat, or one number rounded to TF32; a product is eight words deep.
// With group = lane / 4 and rank = lane % 4, word w of a thread is that of row group + w % 2 * 8 and depth rank + w / 2 * 4 of the
// left operand, of column group and depth rank + w * 4 of the right one; sums 0 and 1 are those of row group and columns rank * 2
// and rank * 2 + 1, sums 2 and 3 those of row group + 8 (PTX ISA, Matrix Fragments for mma.m16n8k16 and mma.m16n8k8).
// sm_75 has no products of these shapes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_CORES false
#else
#define HAS_CORES true
#endif

template <typename T>
__device__ __forceinline__ u32 cores_word(const T* x) { return (u32)x[0].bits | (u32)x[1].bits << 16; }

// Rounds to nearest, ties away from zero, as cvt.rna.tf32.f32 does. A NaN gets a bit that is not dropped.
template <>
__device__ __forceinline__ u32 cores_word<float>(const float* x) {
    u32 bits = __float_as_uint(x[0]);
    if ((bits & 0x7f800000) == 0x7f800000) return bits & 0x7fffff ? bits | 0x400000 : bits;
    return (bits + 0x1000) & 0xffffe000;
}

// The sum of a word's numbers.
template <typename T>
__device__ __forceinline__ float cores_total(u32 word) {
    T low, high;
    low.bits = (u16)word, high.bits = (u16)(word >> 16);
    return (float)low + (float)high;
}
template <>
__device__ __forceinline__ float cores_total<float>(u32 word) { return __uint_as_float(word); }

#ifdef __CUDACC_RTC__
#define CORES_MMA(shape)                                                                                                      \
    asm volatile("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                    \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#else
// The same by shuffles, where kernels run on a CPU.
template <typename T>
float cores_product(u32 a, u32 b) {
    T low, high, other, another;
    low.bits = (u16)a, high.bits = (u16)(a >> 16), other.bits = (u16)b, another.bits = (u16)(b >> 16);
    return (float)low * (float)other + (float)high * (float)another;
}
template <>
float cores_product<float>(u32 a, u32 b) { return __uint_as_float(a) * __uint_as_float(b); }

template <typename T>
void cores_shuffled(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    int lane = threadIdx.x & 31, group = lane / 4, rank = lane % 4;
    for (int from = 0; from < 4; ++from)
        for (int deep = 0; deep < 2; ++deep) {
            u32 top = __shfl_sync(0xffffffffu, a[deep * 2], group * 4 + from);
            u32 bottom = __shfl_sync(0xffffffffu, a[deep * 2 + 1], group * 4 + from);
            for (int j = 0; j < 2; ++j) {
                u32 other = __shfl_sync(0xffffffffu, b[deep], (rank * 2 + j) * 4 + from);
                sums[j] += cores_product<T>(top, other);
                sums[2 + j] += cores_product<T>(bottom, other);
            }
        }
}
#define CORES_MMA(shape) cores_shuffled<T>(sums, a, b)
#endif

// Adds the product of two operands to the sums. All threads of the warp take part.
template <typename T> struct Multiplied;
template <> struct Multiplied<half> {
    typedef half T;
    static __device__ __forceinline__ void add(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        CORES_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    }
};
template <> struct Multiplied<bfloat> {
    typedef bfloat T;
    static __device__ __forceinline__ void add(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        CORES_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    }
};
template <> struct Multiplied<float> {
    typedef float T;
    static __device__ __forceinline__ void add(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        CORES_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    }
};

template <typename T>
__device__ __forceinline__ void cores_add(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    Multiplied<T>::add(sums, a, b);
}
