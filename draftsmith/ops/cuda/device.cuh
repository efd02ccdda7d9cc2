// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

/// What kernels need of a GPU, so that the same bodies run in tests without one.
///
/// A kernel is a struct: its members are its arguments,
///
///   static constexpr int kThreads = 256;        // of a block, a multiple of 32
///   int64_t shared_bytes() const;               // of a block, at most kMaxSharedBytes
///   template <class Block>
///   DS_DEVICE void operator()(Block& block) const;   // what every thread runs
///
/// `Block` is a thread's view of its block: CudaBlock (ops/cuda/block.cuh) on a GPU, HostBlock
/// (tests/support/host_runner.h) in tests. Both have
///
///   thread(), lane(), warp()    place in the block, in the warp, of the warp in the block
///   index(), count()            of the block in the grid
///   sync(), sync_warp()         barriers that also order shared memory; shuffles and votes do not
///   shuffle(v, lane), shuffle_xor(v, mask), any(b), ballot(b)
///   template shared<T>(n)       the next n elements of shared memory, 16-byte aligned; every
///                               thread asks for the same arrays in the same order. An array has
///                               load(i), store(i, v), load_vector(i) and store_vector(i, v) of 16
///                               bytes, add(i, v) (atomic, gives the old value), part(begin, n)
///   atomic_add(pointer, v)      in global memory, gives the old value
///   copy_async(tile, i, from, is_valid)
///                               16 bytes from global to shared memory, or zeros, and `from` is not
///                               read. Visible to this thread after wait_copies, to others after a
///                               barrier that follows
///   commit_copies()             closes a group of copies
///   template wait_copies<N>()   until at most the N newest groups are on their way
///   load_matrices(m, tile, i)   ldmatrix: four 8x8 matrices of 16-bit elements; lane l gives the
///                               place of row l % 8 of matrix l / 8, 16-byte aligned. This lane
///                               gets elements 2 (l % 4) and the next of row l / 4 of each
///   load_transposed(m, tile, i) the same of the transposed matrices
///   multiply(sum, a, b)         sum[16, 8] += a[16, 16] b[16, 8], bf16 pairs, see `MmaLayout`
///
/// What is collective (barriers, shuffles, votes, load_matrices, multiply) is called by all threads
/// of the block or the warp, from the same line.
namespace draftsmith::ops::cuda {

#ifdef __CUDACC__
#define DS_DEVICE __device__ __forceinline__
#define DS_UNROLL _Pragma("unroll")
#define DS_PRAGMA(text) _Pragma(#text)
#define DS_UNROLL_BY(count) DS_PRAGMA(unroll count)
#else
#define DS_DEVICE inline
#define DS_UNROLL
#define DS_UNROLL_BY(count)
#endif

constexpr int kWarp = 32;
/// What every supported architecture has: 80 has 163 KiB, 90 and 100 have 227, 120 has 99.
constexpr int64_t kMaxSharedBytes = 99 * 1024;
constexpr int kVectorBytes = 16;

/// bfloat16 as its bits.
struct BF16 {
  uint16_t bits;
};

/// The type that arithmetic on stored elements uses.
template <class T>
struct ComputeOf {
  using Type = T;
};
template <>
struct ComputeOf<BF16> {
  using Type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::Type;

/// Elements that one access moves.
template <class T, int N = kVectorBytes / static_cast<int>(sizeof(T))>
struct alignas(N * sizeof(T)) Vector {
  T values[N];
};

/// `from` is aligned as the vector is.
template <int N, class T>
DS_DEVICE Vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <int N, class T>
DS_DEVICE void store_vector(T* to, const Vector<T, N>& vector) {
  *reinterpret_cast<Vector<T, N>*>(to) = vector;
}

DS_DEVICE float bits_to_float(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
DS_DEVICE uint32_t float_to_bits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

DS_DEVICE float widen(BF16 value) { return bits_to_float(static_cast<uint32_t>(value.bits) << 16); }
DS_DEVICE float widen(float value) { return value; }
DS_DEVICE double widen(double value) { return value; }

/// Rounds to nearest even; values are finite.
template <class T>
DS_DEVICE T narrow(Compute<T> value) {
  return value;
}
template <>
DS_DEVICE BF16 narrow<BF16>(float value) {
#ifdef __CUDACC__
  BF16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  return rounded;
#else
  const uint32_t bits = float_to_bits(value);
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

/// `value` as an element of T holds it.
template <class T>
DS_DEVICE Compute<T> round_to(Compute<T> value) {
  return widen(narrow<T>(value));
}

/// Two elements as a register of `multiply` holds them, the first in the low half.
DS_DEVICE uint32_t pack(BF16 low, BF16 high) {
  return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
}

/// exp for elements stored as T: on a GPU the hardware's for bfloat16, whose relative error of some
/// |x| 2^-24 is far below what is stored.
template <class T>
DS_DEVICE Compute<T> exp_for(Compute<T> x) {
  return std::exp(x);
}
#ifdef __CUDACC__
template <>
DS_DEVICE float exp_for<BF16>(float x) {
  return __expf(x);
}
#endif

/// 1 / (1 + exp(-x)): where exp overflows to infinity, 0.
template <class T>
DS_DEVICE Compute<T> sigmoid_for(Compute<T> x) {
  return 1 / (1 + exp_for<T>(-x));
}

/// Whether all rows of these dense [.., width] arrays can be moved in 16 bytes; null is one, too.
template <class T>
bool has_wide_rows(int64_t width, std::initializer_list<const void*> arrays) {
  if (width % (kVectorBytes / static_cast<int64_t>(sizeof(T))) != 0) return false;
  for (const void* array : arrays)
    if (reinterpret_cast<uintptr_t>(array) % kVectorBytes != 0) return false;
  return true;
}

/// Bytes of shared memory that an array of `count` elements takes.
template <class T>
constexpr int64_t shared_size(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(T)) + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
}

inline int64_t count_blocks(int64_t items, int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

/// Where a lane's registers stand in the matrices of `multiply` (mma.sync m16n8k16, row.col). Each
/// register of a and b holds two elements that follow each other along k.
struct MmaLayout {
  int lane;
  DS_DEVICE int a_row(int i) const { return lane / 4 + (i % 2) * 8; }      // a[i], i = 0 .. 3
  DS_DEVICE int a_k(int i) const { return (lane % 4) * 2 + (i / 2) * 8; }  // and the next
  DS_DEVICE int b_k(int i) const { return (lane % 4) * 2 + i * 8; }        // b[i], i = 0, 1
  DS_DEVICE int b_column() const { return lane / 4; }
  DS_DEVICE int sum_row(int i) const { return lane / 4 + (i / 2) * 8; }  // sum[i], i = 0 .. 3
  DS_DEVICE int sum_column(int i) const { return (lane % 4) * 2 + i % 2; }
};

}  // namespace draftsmith::ops::cuda
