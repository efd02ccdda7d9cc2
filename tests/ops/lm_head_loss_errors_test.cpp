// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/lm_head_loss.h"

#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::random_normal;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct LmHeadLossErrors : ::testing::Test {
  LossRows rows{
      random_normal({4, 3}, 1), torch::tensor({0, 1, 2, 3}, torch::kLong),
      torch::ones({4}, torch::kDouble), random_normal({2, 3}, 2),
      torch::tensor({0, 1, 1, 0}, torch::kLong)};
  torch::Tensor lm_head = random_normal({5, 3}, 3);

  void expect_refused(
      const std::vector<std::string>& parts,
      const LossOptions& options = {0.15, 0.1}) {
    testing::expect_error<ShapeError>([&] { lm_head_loss(rows, lm_head, options); }, parts);
    testing::expect_error<ShapeError>([&] { lm_head_loss_full(rows, lm_head, options); }, parts);
  }
};

TEST_F(LmHeadLossErrors, AcceptsTheRowsThatTheOthersDamage) {
  EXPECT_NO_THROW(lm_head_loss(rows, lm_head, {0.15, 0.1}));
}

TEST_F(LmHeadLossErrors, RefusesALabelOutsideTheVocabulary) {
  rows.labels[2] = 5;
  expect_refused({"labels", "row 2"});
  rows.labels[2] = -1;
  expect_refused({"labels", "row 2"});
}

TEST_F(LmHeadLossErrors, RefusesANegativeWeight) {
  rows.weights[3] = -1;
  expect_refused({"weights", "row 3"});
}

TEST_F(LmHeadLossErrors, RefusesAWeightThatIsNoNumber) {
  rows.weights[1] = kNan;
  expect_refused({"weights", "row 1"});
  rows.weights[1] = std::numeric_limits<double>::infinity();
  expect_refused({"weights", "row 1"});
}

TEST_F(LmHeadLossErrors, NamesTheRowOfAHiddenStateThatIsNoNumber) {
  rows.weights[0] = 0;  // so that the row's number is not its place among supervised rows
  rows.hidden[2][1] = kNan;
  expect_refused({"hidden", "row 2"});
}

TEST_F(LmHeadLossErrors, ReadsNoHiddenStateOfARowWithoutWeight) {
  rows.weights[2] = 0;
  rows.hidden[2][1] = kNan;
  EXPECT_TRUE(lm_head_loss(rows, lm_head, {0.15, 0.1}).loss_sum.isfinite().item<bool>());
  EXPECT_TRUE(lm_head_loss_full(rows, lm_head, {0.15, 0.1}).loss_sum.isfinite().item<bool>());
}

TEST_F(LmHeadLossErrors, RefusesRowsThatDisagree) {
  const LossRows good = rows;
  rows.labels = good.labels.narrow(0, 0, 3);
  expect_refused({"labels"});
  rows = good;
  rows.weights = good.weights.narrow(0, 0, 3);
  expect_refused({"weights"});
  rows = good;
  rows.teacher_rows = good.teacher_rows.narrow(0, 0, 3);
  expect_refused({"teacher_rows"});
  rows = good;
  rows.teacher_states = random_normal({2, 4}, 2);
  expect_refused({"teacher_states"});
  rows = good;
  rows.hidden = random_normal({4, 4}, 1);
  expect_refused({"lm_head"});
}

TEST_F(LmHeadLossErrors, RefusesDtypesThatDisagree) {
  lm_head = lm_head.to(torch::kFloat);
  expect_refused({"lm_head", "Float"});
}

TEST_F(LmHeadLossErrors, RefusesATeacherRowThatDoesNotExist) {
  rows.teacher_rows[1] = 2;
  expect_refused({"teacher_rows", "row 1"});
}

TEST_F(LmHeadLossErrors, RefusesDistillationWithoutATeacher) {
  rows.teacher_states = torch::Tensor();
  expect_refused({"teacher", "kl_weight"});
  EXPECT_NO_THROW(lm_head_loss(rows, lm_head, {0, 0.1}));
}

}  // namespace
}  // namespace draftsmith::ops
