// A launch for many tensors, or for many parameters with their gradients and states: the table of them is its argument.

// Up to 64 tensors, each with up to four beside it (0 for none), the first block of each, and elements per block.
struct Group {
    i64 count, chunk, first[64], sizes[64];
    u64 tensors[5][64];
};

// The index of the tensor that this block works on.
__device__ __forceinline__ int owner(const Group& group) {
    int low = 0, high = (int)group.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (group.first[middle] <= blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return low;
}
