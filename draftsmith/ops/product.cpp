// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/product.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

namespace draftsmith::ops {
namespace {

using torch::Tensor;

constexpr int64_t kAlign = 64;  // of parts, so that the kernels' own tiles are whole

thread_local bool is_in_call = false;

void call_library(Tensor out, const Tensor& a, const Tensor& b, const Tensor& addend) {
  if (addend.defined()) {
    at::addmm_out(out, addend, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

/// A call that may take scratch.
void call_library_for_part(Tensor out, const Tensor& a, const Tensor& b, const Tensor& addend) {
  struct Mark {
    Mark() { is_in_call = true; }
    ~Mark() { is_in_call = false; }
  } const mark;
  call_library(std::move(out), a, b, addend);
}

}  // namespace

int64_t part_of_product(int64_t M, int64_t N, bool is_beside_others) {
  const int64_t most = is_beside_others ? kProductCellsOfThread : kProductCells;
  if (M * N <= most) return std::max(M, N);
  return std::max(kAlign, most / std::min(M, N) / kAlign * kAlign);
}

bool is_in_product() { return is_in_call; }

void product_out(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend) {
  const int64_t M = out.size(0), N = out.size(1);
  const auto whole = addend.defined() ? addend.expand_as(out) : addend;
  const bool may_sum_elsewhere = out.is_cpu() && out.scalar_type() == torch::kBFloat16;
  if (!may_sum_elsewhere) return call_library(out, a, b, whole);
  const int64_t part = part_of_product(M, N, at::in_parallel_region());
  if (part == std::max(M, N)) return call_library_for_part(out, a, b, whole);
  const int64_t dim = N > M ? 1 : 0;
  for (int64_t first = 0; first < out.size(dim); first += part) {
    const int64_t count = std::min(part, out.size(dim) - first);
    call_library_for_part(
        out.narrow(dim, first, count), dim == 0 ? a.narrow(0, first, count) : a,
        dim == 1 ? b.narrow(1, first, count) : b,
        whole.defined() ? whole.narrow(dim, first, count) : whole);
  }
}

Tensor product(const Tensor& a, const Tensor& b, const Tensor& addend) {
  auto out = torch::empty({a.size(0), b.size(1)}, a.options());
  product_out(out, a, b, addend);
  return out;
}

}  // namespace draftsmith::ops
