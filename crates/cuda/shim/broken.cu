// Kernels with the faults that the shim must show, and one without.
#include "common.cuh"

// out[block] = sum of in; the second barrier is missing, so a slow thread reads what a fast one wrote for its next sum.
KERNEL sum_without_barrier(const float* in, float* out) {
    SHARED float parts[WARP];
    for (int round = 0; round < 2; ++round) {
        float sum = warp_sum(in[round * blockDim.x + threadIdx.x]);
        if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum = 0.0f;
        for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) sum += parts[warp];
        out[round * blockDim.x + threadIdx.x] = sum;
    }
}
KERNEL sum_with_barrier(const float* in, float* out) {
    SHARED float parts[WARP];
    for (int round = 0; round < 2; ++round) out[round * blockDim.x + threadIdx.x] = block_sum(in[round * blockDim.x + threadIdx.x], parts);
}
// Half of the threads wait for the other half, which waits for its warp's lanes.
KERNEL barrier_of_half(const float*, float* out) {
    if (threadIdx.x % 2) __syncthreads();
    else out[threadIdx.x] = warp_sum(1.0f);
}
// Relies on lanes that run in step.
KERNEL lanes_in_step(const float* in, float* out) {
    SHARED float parts[1024];
    parts[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = parts[threadIdx.x ^ 1];
}
// Reads one number too many.
KERNEL reads_behind(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x + 4]; }

// Reads 16 bytes at a place that is no multiple of 16, which a GPU refuses.
KERNEL reads_askew(const float* from, float* to) {
    const Words4* words = (const Words4*)(from + 1 + threadIdx.x * 4);
    to[threadIdx.x] = __uint_as_float(words->x);
}

// Each block takes what the one before it left.
KERNEL blocks_in_order(const float* from, float* to) {
    to[blockIdx.x] = (blockIdx.x > 0 ? to[blockIdx.x - 1] : 0.0f) + from[blockIdx.x];
}
