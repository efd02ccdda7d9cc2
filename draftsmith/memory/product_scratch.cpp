// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/product_scratch.h"

#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/ops/product.h"

namespace draftsmith::memory {
namespace {

int64_t measure() {
  constexpr int64_t kSide = 2048, kLength = 1024;
  static_assert(kSide * kSide == ops::kProductCells);
  const auto a = torch::zeros({kSide, kLength}, torch::kBFloat16);
  const auto b = torch::zeros({kLength, kSide}, torch::kBFloat16);
  const auto out = torch::empty({kSide, kSide}, torch::kBFloat16);
  reset_host_peak();
  ops::product_out(out, a, a.t());  // forward
  ops::product_out(out, a, b);      // the gradient of x
  ops::product_out(out, b.t(), b);  // that of the weight
  const auto narrow = out.narrow(1, 0, kLength / 4);
  const auto weight = torch::zeros({kSide, kLength / 4}, torch::kBFloat16);
  ops::product_out(narrow, out, weight);  // a longer sum
  return host_bytes().scratch_peak;
}

}  // namespace

int64_t measure_product_scratch() {
  static const int64_t bytes = measure();
  return bytes;
}

}  // namespace draftsmith::memory
