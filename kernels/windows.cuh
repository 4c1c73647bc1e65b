// Windows over images, as convolutions read them: positions taken apart, and the elements at them.

struct Windows {
    i64 images, groups, channels, height, width, outputs, rows, columns;  // channels and outputs are those of one group
    i64 kernel[2], stride[2], padding[2], dilation[2];
};

// The elements of an image, with what a window reaches beyond it, and those of the weight fit into 32 bits, padded sides and
// strides into 29: gradcore/devices/gpu/kernels/images.py checks that. Repeated divisions by the same number multiply by its reciprocal,
// rounded down, so that a quotient is at most one too small: a quarter of the instructions.
struct Divisor {
    u32 n, reciprocal;
    __device__ explicit Divisor(i64 n) : n((u32)n), reciprocal(0xffffffffu / (u32)n) {}
    // Returns the remainder of i; i becomes the quotient.
    __device__ __forceinline__ u32 rest(u32& i) const {
        u32 q = __umulhi(i, reciprocal), r = i - q * n;
        bool small = r >= n;
        i = q + small;
        return small ? r - n : r;
    }
};

// What an operand reads is the sum of two places, of one that its column stands for and of one that its step of k stands for, each
// with the elements before it, its row and its column. One of them names the image, and the other is within it.
struct alignas(16) Far {
    i64 at;
    int y, x;
};

struct alignas(16) Near {
    u32 at;
    int y, x;
};

// Planes of all images, with `channels` each: takes positions in one of them apart.
struct Planes {
    i64 area;
    Divisor by, across;
    __device__ Planes(i64 rows, i64 columns) : area(rows * columns), by(area), across(columns) {}
    // The image of position i, which becomes its row in the plane, and its column.
    __device__ __forceinline__ i64 split(i64 i, u32& y, u32& x) const {
        u32 image = (u32)i;
        if (i >> 32) {
            i64 far = i / area;
            y = (u32)(i - far * area);
            x = across.rest(y);
            return far;
        }
        y = by.rest(image);
        x = across.rest(y);
        return image;
    }
};

// Channel, row and column of tap i of a window with all its channels.
struct Taps {
    Divisor down, across;
    __device__ explicit Taps(const Windows& w) : down(w.kernel[0]), across(w.kernel[1]) {}
    __device__ __forceinline__ u32 split(u32 i, int& y, int& x) const {
        x = (int)across.rest(i);
        y = (int)down.rest(i);
        return i;
    }
};

// The pointer, whose terms the compiler would otherwise add to the offset of each access anew: an access then takes one
// instruction for its address instead of four. It may lie outside its array, and the compiler forgets that it is global memory.
template <typename T>
__device__ __forceinline__ const T* kept(const T* p) {
#ifdef __CUDACC_RTC__
    asm("" : "+l"(p));
    __builtin_assume(__isGlobal(p));
#endif
    return p;
}

// The element of images at two places together, 0 if that is outside.
template <typename T>
struct Seen {
    const T* x;
    u32 height, width;
    __device__ __forceinline__ T operator()(Far image, Near within) const {
        bool inside = ((u32)(image.y + within.y) < height) & ((u32)(image.x + within.x) < width);
        T found = (T)(WIDE(T))0;
        if (inside) found = kept(x + image.at)[within.at];
        return found;
    }
};

// No place at all: with any other one it is above the image.
#define NOWHERE (-(1 << 30))
