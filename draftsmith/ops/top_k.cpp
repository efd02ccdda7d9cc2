// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/top_k.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

TopK top_k(const torch::Tensor& logits, int64_t k) {
  const auto [R, V] = dims<2>(logits, "logits");
  if (k < 1 || k > V) {
    throw ShapeError(
        {.what = "top_k",
         .expected = fmt::format("k from 1 to {}", V),
         .got = fmt::format("{}", k)});
  }
  const Storage storage = storage_of(logits);
  if (storage == Storage::kF64) {
    throw ShapeError(
        {.what = "logits", .expected = "bfloat16 or float32", .got = "float64", .where = "top_k"});
  }
  const auto dense = logits.contiguous();
  TopK top{torch::empty({R, k}, torch::kLong), torch::empty({R, k}, torch::kFloat)};
  compute_top_k(
      {.storage = storage,
       .logits = dense.const_data_ptr(),
       .rows = R,
       .vocab_size = V,
       .k = k,
       .ids = top.ids.data_ptr<int64_t>(),
       .log_probs = top.log_probs.data_ptr<float>()});
  return top;
}

}  // namespace draftsmith::ops
