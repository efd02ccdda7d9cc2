// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/product_sums.h"

#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/ops/product.h"

namespace draftsmith::memory {

int64_t measure_product_sums() {
  constexpr int64_t kSide = 2048, kLength = 64;
  static_assert(kSide * kSide == ops::kProductCells);
  const auto a = torch::zeros({kSide, kLength}, torch::kBFloat16);
  const auto out = torch::empty({kSide, kSide}, torch::kBFloat16);
  reset_host_peak();
  const int64_t before = host_bytes().live;
  ops::product_out(out, a, a.t());
  return host_bytes().peak - before;
}

}  // namespace draftsmith::memory
