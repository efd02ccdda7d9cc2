// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "tests/support/golden.h"

namespace draftsmith::ops {
namespace {

torch::Tensor make(at::IntArrayRef sizes, double step) {
  int64_t count = 1;
  for (const int64_t size : sizes)
    count *= size;
  return (torch::arange(count, torch::kDouble) * step).sin().view(sizes).to(torch::kBFloat16);
}

/// Off by the rounding of the result and of float32 sums.
void expect_product(const torch::Tensor& found, const torch::Tensor& exact, int64_t length) {
  const double sums = std::exp2(-24) * static_cast<double>(length * length);
  const auto error = (found.to(torch::kDouble) - exact).abs();
  EXPECT_TRUE((error <= exact.abs() * std::exp2(-8) + sums).all().item<bool>());
}

TEST(Product, EqualsTheSumsWhereItIsComputedInParts) {
  const int64_t wide = kProductCells / 64 + 1000, K = 7;
  for (const auto& [M, N] : {std::pair{int64_t{70}, wide}, {wide, int64_t{70}}, {3, 5}}) {
    SCOPED_TRACE(M);
    const auto a = make({M, K}, 0.37), b = make({N, K}, 0.73).t();
    const auto exact = torch::mm(a.to(torch::kDouble), b.to(torch::kDouble));
    expect_product(product(a, b), exact, K);
    const auto a_across = a.t().contiguous().t(), b_across = b.contiguous();
    expect_product(product(a_across, b_across), exact, K);
    for (const auto& addend : {make({M, 1}, 0.9), make({N}, 0.9), make({M, N}, 0.9)})
      expect_product(product(a, b, addend), exact + addend.to(torch::kDouble), K + 1);
    // Into a part of the rows of a larger array.
    const auto large = torch::full({M + 2, N}, 9, torch::kBFloat16);
    product_out(large.narrow(0, 1, M), a, b);
    expect_product(large.narrow(0, 1, M), exact, K);
    EXPECT_TRUE(large[0].eq(9).all().item<bool>() && large[M + 1].eq(9).all().item<bool>());
  }
}

/// A value in bytes of /proc/self/status.
int64_t read_status(const std::string& wanted) {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key && key != wanted + ":")
    status.ignore(4096, '\n');
  int64_t kibibytes = 0;
  status >> kibibytes;
  return kibibytes * 1024;
}

TEST(Product, NeedsLittleMemoryBesideItsResult) {
  const auto a = make({1024, 64}, 0.37), b = make({64, 40 << 10}, 0.73);
  const auto out = torch::ones({1024, 40 << 10}, torch::kBFloat16);
  product_out(out, a, b);  // makes the library's kernels
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = read_status("VmHWM");
  product_out(out, a, b);
  // A float32 copy of the result would be 160 MiB.
  EXPECT_LE(read_status("VmHWM") - before, 4 * kProductCells + (int64_t{4} << 20));
}

}  // namespace
}  // namespace draftsmith::ops
