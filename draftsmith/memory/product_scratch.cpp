// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/product_scratch.h"

#include <malloc.h>

#include <algorithm>

#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/step_model.h"
#include "draftsmith/ops/product.h"

namespace draftsmith::memory {
namespace {

struct ProductBytes {
  int64_t scratch, kernel;
};

/// Of shapes that no part of a product had before, while this thread's list is full.
int64_t measure_kernel(const torch::Tensor& values) {
  const auto make_products = [&](int64_t first) {
    for (int64_t i = first; i < first + kListedProductKernels; ++i)
      ops::product(values.narrow(0, 0, 48), values.narrow(0, 0, 80 + 16 * i).t());
  };
  make_products(0);
  const auto in_use = [] { return static_cast<int64_t>(::mallinfo2().uordblks); };
  const int64_t before = in_use();
  make_products(kListedProductKernels);
  return std::max<int64_t>(0, in_use() - before) / kListedProductKernels;
}

ProductBytes measure() {
  constexpr int64_t kSide = 2048, kLength = 1024;
  static_assert(kSide * kSide == ops::kProductCells);
  const auto a = torch::zeros({kSide, kLength}, torch::kBFloat16);
  const auto b = torch::zeros({kLength, kSide}, torch::kBFloat16);
  const auto out = torch::empty({kSide, kSide}, torch::kBFloat16);
  const auto narrow = out.narrow(1, 0, kLength / 4);
  const auto weight = torch::zeros({kSide, kLength / 4}, torch::kBFloat16);
  reset_host_peak();
  ops::product_out(out, a, a.t());        // forward
  ops::product_out(out, a, b);            // the gradient of x
  ops::product_out(out, b.t(), b);        // that of the weight
  ops::product_out(narrow, out, weight);  // a longer sum
  return {host_bytes().scratch_peak, measure_kernel(a)};
}

const ProductBytes& product_bytes() {
  static const ProductBytes bytes = measure();
  return bytes;
}

}  // namespace

int64_t measure_product_scratch() { return product_bytes().scratch; }

int64_t measure_product_kernel() { return product_bytes().kernel; }

void measure_products(StepShape& shape) {
  if (shape.is_on_gpu) return;
  shape.product_scratch = measure_product_scratch();
  shape.product_kernel = measure_product_kernel();
}

}  // namespace draftsmith::memory
