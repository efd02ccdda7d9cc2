// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/top_k.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

/// For more entries than the kernel of a GPU gives.
TopK sort_all(const torch::Tensor& logits, int64_t k) {
  const auto wide = logits.to(torch::kFloat);
  const auto ids = std::get<1>(wide.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(1, 0, k);
  return {ids.cpu(), wide.log_softmax(1).gather(1, ids).cpu()};
}

}  // namespace

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
  if (!dense.is_cpu() && k > cuda::kMaxTop) return sort_all(dense, k);
  TopK top{
      torch::empty({R, k}, dense.options().dtype(torch::kLong)),
      torch::empty({R, k}, dense.options().dtype(torch::kFloat))};
  const TopKParams params{
      .storage = storage,
      .logits = dense.const_data_ptr(),
      .rows = R,
      .vocab_size = V,
      .k = k,
      .ids = top.ids.data_ptr<int64_t>(),
      .log_probs = top.log_probs.data_ptr<float>()};
  cuda::run_where(dense, params, compute_top_k, cuda::compute_top_k);
  return {top.ids.cpu(), top.log_probs.cpu()};
}

}  // namespace draftsmith::ops
