// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cpu/pairs.h"

#include "draftsmith/base/error.h"

#if defined(__x86_64__)

#include <cstring>

// GCC 12 takes the undefined vectors within its own intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

namespace draftsmith::ops {

bool has_pair_products() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

__attribute__((target("avx512f,avx512bf16"))) void multiply_pairs(const PairProduct& product) {
  constexpr int kRows =
      8;  // with two vectors of columns: 16 sums, more than an instruction's delay
  constexpr int64_t kLanes = 16;
  static_assert(kPairPanel == 2 * kLanes);
  for (int64_t first = 0; first < product.rows; first += kRows) {
    const uint16_t* left = product.left + first * product.left_stride;
    float* out = product.out + first * product.out_stride;
    __m512 sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v)
        sums[r][v] = product.accumulates
                         ? _mm512_loadu_ps(out + r * product.out_stride + v * kLanes)
                         : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < product.depth; k += 2) {
      const uint32_t* right = product.right + k / 2 * kPairPanel;
      const auto even = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right));
      const auto odd = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + kLanes));
      for (int64_t r = 0; r < kRows; ++r) {
        int pair;
        std::memcpy(&pair, left + r * product.left_stride + k, sizeof(pair));
        const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], factor, even);
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], factor, odd);
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v)
        _mm512_storeu_ps(out + r * product.out_stride + v * kLanes, sums[r][v]);
    }
  }
}

}  // namespace draftsmith::ops

#else  // other processors have no such instructions

namespace draftsmith::ops {

bool has_pair_products() { return false; }
void multiply_pairs(const PairProduct&) { DS_CHECK(has_pair_products()); }

}  // namespace draftsmith::ops

#endif
