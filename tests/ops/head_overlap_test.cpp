// SPDX-License-Identifier: Apache-2.0
// The head's two buffers of logits, whose second stream a GPU has. Here its work is put off as far
// as the first one's waits allow.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/ops/loss_rows.h"

#include "tests/support/random_tensor.h"

namespace draftsmith::ops {
namespace {

using testing::random_normal;
using torch::Tensor;

/// Runs what it is given only when somebody waits for it.
class LateStream final : public RowStream {
 public:
  explicit LateStream(size_t& most_at_once) : most_at_once_(most_at_once) {}
  ~LateStream() override { catch_up(works_.size()); }

  bool overlaps() const override { return true; }
  void run(const std::function<void()>& work) override {
    works_.push_back(work);
    most_at_once_ = std::max(most_at_once_, works_.size() - done_);
  }
  void wait_for(size_t i) override { catch_up(i + 1); }

 private:
  void catch_up(size_t end) {
    for (; done_ < end; ++done_)
      works_[done_]();
  }

  std::vector<std::function<void()>> works_;
  size_t done_ = 0;
  size_t& most_at_once_;
};

struct Head {
  LossRows rows;
  Tensor lm_head;
};

/// Neighbouring rows share teacher rows; every fifth row has no weight.
Head make_head(torch::ScalarType dtype, bool has_teacher) {
  constexpr int64_t R = 120, D = 16, V = 300;
  const auto number = torch::arange(R, torch::kLong);
  Head head;
  head.rows.hidden = random_normal({R, D}, 1).to(dtype).set_requires_grad(true);
  head.rows.labels = (number * 7).remainder(V);
  head.rows.weights = number.remainder(5).ne(0).to(torch::kFloat);
  if (has_teacher) {
    head.rows.teacher_states = random_normal({R, D}, 2).to(dtype);
    head.rows.teacher_rows = number.div(2, "floor");
  }
  head.lm_head = random_normal({V, D}, 3).to(dtype);
  return head;
}

struct Result {
  LossTerms terms;
  Tensor gradient;
};

Result run(const Head& head, const LossOptions& options, const MakeRowStream& make) {
  Result result;
  result.terms = fused_loss(head.rows, head.lm_head, options, make);
  result.gradient = torch::autograd::grad(
      {(result.terms.weights * result.terms.row_loss).sum()}, {head.rows.hidden})[0];
  return result;
}

TEST(HeadOverlap, GivesTheBitsOfOneChunkAfterTheOther) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const bool has_teacher : {false, true}) {
      const auto head = make_head(dtype, has_teacher);
      for (const int64_t chunk_rows : {6, 20, 34, 400}) {
        SCOPED_TRACE(chunk_rows);
        size_t most_at_once = 0;
        const LossOptions whole{
            .kl_weight = has_teacher ? 0.2 : 0.0,
            .cap_weight = 0.1,
            .chunk_rows = chunk_rows,
            .top_k = 2};
        auto half = whole;  // the two buffers share the rows that one would have
        half.chunk_rows = chunk_rows / 2;
        const auto got = run(
            head, whole, [&](torch::Device) { return std::make_unique<LateStream>(most_at_once); });
        const auto wanted = run(head, half, make_row_stream);
        EXPECT_TRUE(got.gradient.equal(wanted.gradient));
        EXPECT_TRUE(got.terms.row_loss.equal(wanted.terms.row_loss));
        EXPECT_TRUE(got.terms.kl.equal(wanted.terms.kl));
        EXPECT_TRUE(got.terms.top_ids.equal(wanted.terms.top_ids));
        // A chunk's rows wait beside the next one's product, and no more than that.
        EXPECT_EQ(most_at_once, chunk_rows == 400 ? 1U : 2U);
      }
    }
  }
}

TEST(HeadOverlap, EndsTheSecondStreamBeforeItsMemoryAfterAnError) {
  auto head = make_head(torch::kFloat, false);
  {
    const at::NoGradGuard no_grad;
    head.rows.hidden[117][3] = std::numeric_limits<float>::quiet_NaN();
  }
  size_t most_at_once = 0;
  EXPECT_ANY_THROW(run(head, {.chunk_rows = 20}, [&](torch::Device) {
    return std::make_unique<LateStream>(most_at_once);
  }));
}

}  // namespace
}  // namespace draftsmith::ops
