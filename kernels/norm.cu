// Layer, RMS and batch norm, forward and backward: a team of threads a row, or blocks that share a channel.
//
// Traffic in bytes, n elements of s: layer and RMS norm read n s (a row that fits is found in cache again), write n s and
// two numbers a row; dx reads 2 n s and writes n s; the gradients of weight and bias read 2 n s once more, and their parts
// lie in the workspace. batch_norm reads 3 n s and writes n s, its gradient reads 4 n s and writes n s; affine reads and
// writes n s. Ba, Kiros and Hinton, arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467; Ioffe and Szegedy,
// arXiv:1502.03167.

#include "common.cuh"

// Rows that lie one after another. Centred is layer norm; else the mean is taken for 0, which is RMS norm.
template <typename T, bool Centred>
__global__ void layer_norm(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, i64 rows, i64 width,
                           double eps, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    x += team.row * width;
    out += team.row * width;
    A m = 0, square = 0;
    if (Centred) {
        for (i64 i = team.rank; i < width; i += lanes) m += (A)x[i];
        m = team_fold<Sum>(m, team, room) / (A)width;
    }
    for (i64 i = team.rank; i < width; i += lanes) square += ((A)x[i] - m) * ((A)x[i] - m);
    A r = (A)1 / sqrt(team_fold<Sum>(square, team, room) / (A)width + (A)eps);
    for (i64 i = team.rank; i < width; i += lanes) {
        A y = ((A)x[i] - m) * r;
        if (weight) y *= (A)weight[i];
        out[i] = (T)(bias ? y + (A)bias[i] : y);
    }
    if (team.rank) return;
    if (mean) mean[team.row] = (T)m;
    rstd[team.row] = (T)r;
}

// (x - mean) rstd weight + bias, the mean and rstd being given; the statistics and the affine map belong to rows and
// columns of [rows, width], or both to channels: then `inner` elements share one of `channels` (0 for rows).
// Where S is wider than T, a channel's statistics are neighbours: element c of them stands at 2 c.
template <typename T, typename S>
__global__ void affine(const T* x, const T* weight, const T* bias, const S* mean, const S* rstd, T* out, i64 n, i64 inner,
                       i64 channels) {
    typedef WIDE(T) A;
    const int step = sizeof(S) > sizeof(T) ? 2 : 1;
    EACH(i, n) {
        i64 row = n < (i64)1 << 32 ? (i64)((u32)i / (u32)inner) : i / inner, column = i - row * inner;
        if (channels) row = column = row < (i64)1 << 32 ? (i64)((u32)row % (u32)channels) : row % channels;
        A y = ((A)x[i] - (A)mean[step * row]) * (A)rstd[step * row];
        if (weight) y *= (A)weight[column];
        out[i] = (T)(bias ? y + (A)bias[column] : y);
    }
}

// rstd (g - mean(g) - hat mean(g hat)), with g = dy weight and hat = (x - mean) rstd.
template <typename T, bool Centred>
__global__ void layer_norm_dx(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, T* dx, i64 rows,
                              i64 width, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    dy += team.row * width;
    x += team.row * width;
    dx += team.row * width;
    A m = Centred ? (A)mean[team.row] : (A)0, r = (A)rstd[team.row], level = 0, slope = 0;
    for (i64 i = team.rank; i < width; i += lanes) {
        A g = weight ? (A)dy[i] * (A)weight[i] : (A)dy[i];
        level += g;
        slope += g * (((A)x[i] - m) * r);
    }
    level = Centred ? team_fold<Sum>(level, team, room) / (A)width : (A)0;
    slope = team_fold<Sum>(slope, team, room) / (A)width;
    for (i64 i = team.rank; i < width; i += lanes) {
        A g = weight ? (A)dy[i] * (A)weight[i] : (A)dy[i];
        dx[i] = (T)((g - level - ((A)x[i] - m) * r * slope) * r);
    }
}

// Sums over rows of dy hat and of dy: 32 columns a tile, eight warps over the rows of one of `parts`. Parts, [2, parts,
// width] of them, are added up by affine_total; a single one is the result.
template <typename T, bool Centred>
__global__ void affine_parts(const T* dy, const T* x, const T* mean, const T* rstd, WIDE(T)* made, T* dweight, T* dbias,
                             i64 rows, i64 width, int parts) {
    typedef WIDE(T) A;
    __shared__ A weights[8][32], biases[8][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 part = blockIdx.x % parts, column = blockIdx.x / parts * 32 + lane;
    i64 each = (rows + parts - 1) / parts, end = each * (part + 1) < rows ? each * (part + 1) : rows;
    A w = 0, b = 0;
    if (column < width)
        for (i64 row = each * part + warp; row < end; row += 8) {
            A g = (A)dy[row * width + column], m = Centred ? (A)mean[row] : (A)0;
            w += g * (((A)x[row * width + column] - m) * (A)rstd[row]);
            b += g;
        }
    weights[warp][lane] = w;
    biases[warp][lane] = b;
    __syncthreads();
    if (warp || column >= width) return;
    for (int k = 1; k < 8; ++k) w += weights[k][lane], b += biases[k][lane];
    if (parts == 1) {
        dweight[column] = (T)w;
        if (dbias) dbias[column] = (T)b;
    } else {
        made[part * width + column] = w;
        made[(parts + part) * width + column] = b;
    }
}

template <typename T>
__global__ void affine_total(const WIDE(T)* made, T* dweight, T* dbias, i64 width, int parts) {
    EACH(column, width) {
        WIDE(T) w = 0, b = 0;
        for (int k = 0; k < parts; ++k) w += made[k * width + column], b += made[(parts + k) * width + column];
        dweight[column] = (T)w;
        if (dbias) dbias[column] = (T)b;
    }
}

// Where element i of a channel's lies in [samples, channels, inner]; 32 bits where they are enough, at a fraction of the cost.
struct Channel {
    i64 inner, step;
    bool small;
    __device__ __forceinline__ Channel(i64 count, i64 inner, i64 channels)
        : inner(inner), step(inner * channels), small(count < (i64)1 << 32) {}
    __device__ __forceinline__ i64 operator()(i64 i) const {
        i64 sample = small ? (i64)((u32)i / (u32)inner) : i / inner;
        return sample * step + i - sample * inner;
    }
};

// The first and the last of a block's share of `count` elements; `parts` blocks work on a channel.
__device__ __forceinline__ void share_of(i64 count, i64 part, int parts, i64& first, i64& last) {
    i64 each = (count + parts - 1) / parts;
    first = part * each < count ? part * each : count;
    last = first + each < count ? first + each : count;
}

// Mean and sum of squares around it of each share of a channel, into made[parts, channels, 2].
template <typename T>
__global__ void batch_parts(const T* x, WIDE(T)* made, i64 count, i64 inner, i64 channels, int parts) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    Channel place(count, inner, channels);
    i64 first, last;
    share_of(count, blockIdx.x / channels, parts, first, last);
    x += blockIdx.x % channels * inner;
    A m = 0, square = 0;
    for (i64 i = first + team.rank; i < last; i += 256) m += (A)x[place(i)];
    m = team_fold<Sum>(m, team, room) / (A)(last > first ? last - first : 1);
    for (i64 i = first + team.rank; i < last; i += 256) {
        A d = (A)x[place(i)] - m;
        square += d * d;
    }
    square = team_fold<Sum>(square, team, room);
    if (!team.rank) made[2 * blockIdx.x] = m, made[2 * blockIdx.x + 1] = square;
}

// The shares put together (Chan, Golub and LeVeque, Stanford STAN-CS-79-773); unbiased variance for what runs. The mean and
// rstd, which T may round, stand in made[0, channels, 2] as well.
template <typename T>
__global__ void batch_statistics(WIDE(T)* made, T* mean, T* rstd, T* running_mean, T* running_var, i64 count,
                                 i64 channels, int parts, double eps, double momentum) {
    typedef WIDE(T) A;
    EACH(c, channels) {
        A m = 0, square = 0, seen = 0;
        for (int part = 0; part < parts; ++part) {
            i64 first, last;
            share_of(count, part, parts, first, last);
            if (last == first) break;
            const WIDE(T)* own = made + 2 * (part * channels + c);
            A off = own[0] - m, size = (A)(last - first), whole = (A)last;
            square += own[1] + off * off * (seen * size / whole);
            m += off * (size / whole);
            seen = whole;
        }
        A var = square / (A)count, old = (A)(1 - momentum), now = (A)momentum;
        made[2 * c] = m;
        made[2 * c + 1] = (A)1 / sqrt(var + (A)eps);
        mean[c] = (T)m;
        rstd[c] = (T)made[2 * c + 1];
        if (running_mean) running_mean[c] = (T)((A)running_mean[c] * old + m * now);
        if (running_var) running_var[c] = (T)((A)running_var[c] * old + var * (now * (A)count / (A)(count - 1)));
    }
}

// What each share of a channel adds to the gradients of weight and bias, into made[parts, channels, 2].
template <typename T>
__global__ void batch_grad_parts(const T* dy, const T* x, const T* mean, const T* rstd, WIDE(T)* made, i64 count, i64 inner,
                                 i64 channels, int parts) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    Channel place(count, inner, channels);
    i64 first, last, channel = blockIdx.x % channels;
    share_of(count, blockIdx.x / channels, parts, first, last);
    A m = (A)mean[channel], r = (A)rstd[channel], w = 0, b = 0;
    for (i64 i = first + team.rank; i < last; i += 256) {
        i64 at = channel * inner + place(i);
        A g = (A)dy[at];
        w += g * (((A)x[at] - m) * r);
        b += g;
    }
    w = team_fold<Sum>(w, team, room);
    b = team_fold<Sum>(b, team, room);
    if (!team.rank) made[2 * blockIdx.x] = w, made[2 * blockIdx.x + 1] = b;
}

// Their sums, which stay in the first share's place as well, where dx reads them in full precision.
template <typename T>
__global__ void batch_grad_total(WIDE(T)* made, T* dweight, T* dbias, i64 channels, int parts) {
    EACH(c, channels) {
        WIDE(T) w = 0, b = 0;
        for (int part = 0; part < parts; ++part) w += made[2 * (part * channels + c)], b += made[2 * (part * channels + c) + 1];
        made[2 * c] = w, made[2 * c + 1] = b;
        dweight[c] = (T)w, dbias[c] = (T)b;
    }
}

template <typename T>
__global__ void batch_norm_dx(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, const WIDE(T)* made,
                              T* dx, i64 n, i64 inner, i64 channels) {
    typedef WIDE(T) A;
    i64 count = n / channels;
    EACH(i, n) {
        i64 c = n < (i64)1 << 32 ? (i64)((u32)i / (u32)inner % (u32)channels) : i / inner % channels;
        A r = (A)rstd[c], own = weight ? r * (A)weight[c] : r;
        A level = made[2 * c + 1] / (A)count, slope = made[2 * c] / (A)count;
        dx[i] = (T)(own * ((A)dy[i] - level - ((A)x[i] - (A)mean[c]) * r * slope));
    }
}
