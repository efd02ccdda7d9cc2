// SPDX-License-Identifier: Apache-2.0
// Only for nvcc. What the functions mean is said in ops/cuda/device.cuh.
#pragma once

#include <cstring>
#include <string>

#include <cuda_runtime.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/cuda/device.cuh"

namespace draftsmith::ops::cuda {

/// An array in shared memory.
template <class T>
class CudaShared {
 public:
  DS_DEVICE explicit CudaShared(T* data) : data_(data) {}
  DS_DEVICE T load(int64_t i) const { return data_[i]; }
  DS_DEVICE void store(int64_t i, T value) const { data_[i] = value; }
  DS_DEVICE Vector<T> load_vector(int64_t i) const {
    return cuda::load_vector<kVectorBytes / sizeof(T)>(data_ + i);
  }
  DS_DEVICE void store_vector(int64_t i, const Vector<T>& vector) const {
    cuda::store_vector(data_ + i, vector);
  }
  DS_DEVICE T add(int64_t i, T value) const { return atomicAdd(data_ + i, value); }
  DS_DEVICE CudaShared part(int64_t begin, int64_t /*count*/) const {
    return CudaShared(data_ + begin);
  }
  /// As the instructions name it. Of 32 bits throughout, so that constants in `i` go into them.
  DS_DEVICE uint32_t address(int64_t i) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data_)) +
           static_cast<uint32_t>(i) * static_cast<uint32_t>(sizeof(T));
  }

 private:
  T* data_;
};

/// A thread's view of its block.
class CudaBlock {
 public:
  DS_DEVICE explicit CudaBlock(unsigned char* memory) : memory_(memory) {}

  DS_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  DS_DEVICE int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  DS_DEVICE int warp() const { return static_cast<int>(threadIdx.x) / kWarp; }
  DS_DEVICE int64_t index() const { return blockIdx.x; }
  DS_DEVICE int64_t count() const { return gridDim.x; }

  DS_DEVICE void sync() { __syncthreads(); }
  DS_DEVICE void sync_warp() { __syncwarp(); }

  template <class T>
  DS_DEVICE T shuffle(T value, int lane) {
    return map_words(value, [&](uint32_t word) { return __shfl_sync(kAll, word, lane); });
  }
  template <class T>
  DS_DEVICE T shuffle_xor(T value, int mask) {
    return map_words(value, [&](uint32_t word) { return __shfl_xor_sync(kAll, word, mask); });
  }
  DS_DEVICE bool any(bool vote) { return __any_sync(kAll, vote) != 0; }
  DS_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(kAll, vote); }

  template <class T>
  DS_DEVICE CudaShared<T> shared(int64_t count) {
    const CudaShared<T> array(reinterpret_cast<T*>(memory_));
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    memory_ += (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    return array;
  }

  template <class T>
  DS_DEVICE T atomic_add(T* to, T value) {
    return atomicAdd(to, value);
  }

  template <class T>
  DS_DEVICE void
  copy_async(const CudaShared<T>& tile, int64_t i, const T* from, bool is_valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile.address(i)), "l"(from),
                 "r"(is_valid ? kVectorBytes : 0)
                 : "memory");
  }
  DS_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N>
  DS_DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }

  template <class T>
  DS_DEVICE void load_matrices(uint32_t (&m)[4], const CudaShared<T>& tile, int64_t i) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(tile.address(i))
                 : "memory");
  }
  template <class T>
  DS_DEVICE void load_transposed(uint32_t (&m)[4], const CudaShared<T>& tile, int64_t i) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(tile.address(i))
                 : "memory");
  }
  DS_DEVICE void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

 private:
  static constexpr uint32_t kAll = 0xFFFFFFFFu;

  /// `map` applied to each 32 bits of a value.
  template <class T, class Map>
  DS_DEVICE static T map_words(T value, const Map& map) {
    constexpr int kWords = (sizeof(T) + 3) / 4;
    uint32_t words[kWords] = {};
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = map(words[i]);
    memcpy(&value, words, sizeof(T));
    return value;
  }

  unsigned char* memory_;  // shared memory that no array has yet
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads)
    run_kernel(const __grid_constant__ Kernel kernel) {
  extern __shared__ uint4 memory[];
  CudaBlock block(reinterpret_cast<unsigned char*>(memory));
  kernel(block);
}

/// Errors: DeviceError unless `status` is cudaSuccess.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError({.what = what, .expected = "success", .got = cudaGetErrorString(status)});
}

/// Launches kernels one after the other on a stream of the current device.
class CudaMachine {
 public:
  explicit CudaMachine(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Kernel>
  void launch(int64_t blocks, const Kernel& kernel) {
    static_assert(Kernel::kThreads % kWarp == 0 && Kernel::kThreads <= 1024);
    if (blocks == 0) return;
    const auto bytes = static_cast<size_t>(kernel.shared_bytes());
    constexpr size_t kWithoutAsking = 48 * 1024;
    if (bytes > kWithoutAsking) {
      check_cuda(
          cudaFuncSetAttribute(
              run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
              static_cast<int>(bytes)),
          "shared memory of a kernel");
    }
    run_kernel<Kernel><<<static_cast<unsigned>(blocks), Kernel::kThreads, bytes, stream_>>>(kernel);
    check_cuda(cudaGetLastError(), "launch of a kernel");
  }

 private:
  cudaStream_t stream_;
};

}  // namespace draftsmith::ops::cuda
