// Layer, RMS and batch norm, forward and backward: a team of threads a row, or a block a channel.
//
// Traffic in bytes, n elements of s: layer and RMS norm read n s (a row that fits is found in cache again), write n s and
// two numbers a row; dx reads 2 n s and writes n s; the gradients of weight and bias read 2 n s once more, and their parts
// lie in the workspace. batch_norm reads 3 n s and writes n s, its gradient reads 4 n s and writes n s; channel_affine reads
// and writes n s. Ba, Kiros and Hinton, arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467; Ioffe and Szegedy,
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
template <typename T>
__global__ void affine(const T* x, const T* weight, const T* bias, const T* mean, const T* rstd, T* out, i64 n, i64 inner,
                       i64 channels) {
    typedef WIDE(T) A;
    EACH(i, n) {
        i64 row = i / inner, column = i % inner;
        if (channels) row = column = row % channels;
        A y = ((A)x[i] - (A)mean[row]) * (A)rstd[row];
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

// A block a channel of [samples, channels, inner]; unbiased variance for what runs.
template <typename T>
__global__ void batch_statistics(const T* x, T* mean, T* rstd, T* running_mean, T* running_var, i64 samples, i64 inner,
                                 double eps, double momentum) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    i64 count = samples * inner, step = inner * gridDim.x;
    x += blockIdx.x * inner;
    A m = 0, square = 0;
    for (i64 i = team.rank; i < count; i += 256) m += (A)x[i / inner * step + i % inner];
    m = team_fold<Sum>(m, team, room) / (A)count;
    for (i64 i = team.rank; i < count; i += 256) {
        A d = (A)x[i / inner * step + i % inner] - m;
        square += d * d;
    }
    A var = team_fold<Sum>(square, team, room) / (A)count;
    if (team.rank) return;
    mean[blockIdx.x] = (T)m;
    rstd[blockIdx.x] = (T)((A)1 / sqrt(var + (A)eps));
    A old = (A)(1 - momentum), now = (A)momentum;
    if (running_mean) running_mean[blockIdx.x] = (T)((A)running_mean[blockIdx.x] * old + m * now);
    if (running_var)
        running_var[blockIdx.x] = (T)((A)running_var[blockIdx.x] * old + var * (now * (A)count / (A)(count - 1)));
}

template <typename T>
__global__ void batch_norm_grad(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, T* dx, T* dweight,
                                T* dbias, i64 samples, i64 inner) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    i64 count = samples * inner, step = inner * gridDim.x, start = blockIdx.x * inner;
    A m = (A)mean[blockIdx.x], r = (A)rstd[blockIdx.x], w = 0, b = 0;
    for (i64 i = team.rank; i < count; i += 256) {
        i64 place = start + i / inner * step + i % inner;
        w += (A)dy[place] * (((A)x[place] - m) * r);
        b += (A)dy[place];
    }
    w = team_fold<Sum>(w, team, room);
    b = team_fold<Sum>(b, team, room);
    if (!team.rank) dweight[blockIdx.x] = (T)w, dbias[blockIdx.x] = (T)b;
    if (!dx) return;
    A own = weight ? r * (A)weight[blockIdx.x] : r, level = b / (A)count, slope = w / (A)count;
    for (i64 i = team.rank; i < count; i += 256) {
        i64 place = start + i / inner * step + i % inner;
        dx[place] = (T)(own * ((A)dy[place] - level - ((A)x[place] - m) * r * slope));
    }
}
