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
    for (const auto method : {LossMethod::kFused, LossMethod::kRecompute, LossMethod::kFull}) {
      LossOptions chosen = options;
      chosen.method = method;
      testing::expect_error<ShapeError>([&] { lm_head_loss(rows, lm_head, chosen); }, parts);
    }
  }
};

TEST_F(LmHeadLossErrors, AcceptsTheRowsThatTheOthersDamage) {
  EXPECT_NO_THROW(lm_head_loss(rows, lm_head, {0.15, 0.1}));
}

TEST_F(LmHeadLossErrors, RefusesALabelOutsideTheVocabulary) {
  rows.labels[2] = 5;
  expect_refused({"labels", "0 to 4", "got 5", "row 2"});
  rows.labels[2] = -1;
  expect_refused({"labels", "got -1", "row 2"});
}

TEST_F(LmHeadLossErrors, RefusesANegativeWeight) {
  rows.weights[3] = -1;
  expect_refused({"weights", "got -1", "row 3"});
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
  expect_refused({"hidden", "nan in column 1", "row 2"});
}

TEST_F(LmHeadLossErrors, ReadsNoHiddenStateOfARowWithoutWeight) {
  rows.weights[2] = 0;
  rows.hidden[2][1] = kNan;
  for (const auto method : {LossMethod::kFused, LossMethod::kRecompute, LossMethod::kFull}) {
    const LossOptions options{.kl_weight = 0.15, .cap_weight = 0.1, .method = method};
    EXPECT_TRUE(lm_head_loss(rows, lm_head, options).loss_sum.isfinite().item<bool>());
  }
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

TEST_F(LmHeadLossErrors, RefusesMoreBestIdsThanTheVocabularyHas) {
  expect_refused({"top_k", "0 to the vocabulary's 5", "6"}, {.top_k = 6});
}

TEST_F(LmHeadLossErrors, NamesTheChunkThatMemoryDoesNotHold) {
  // 2^52 bytes of logits, more than a process can address.
  rows.hidden = torch::zeros({int64_t{1} << 20, 1});
  rows.labels = torch::zeros({int64_t{1} << 20}, torch::kLong);
  rows.weights = torch::ones({int64_t{1} << 20});
  rows.teacher_states = rows.teacher_rows = torch::Tensor();
  lm_head = torch::zeros({1}).expand({int64_t{1} << 30, 1});
  testing::expect_error<DeviceError>(
      [&] { lm_head_loss(rows, lm_head, {}); }, {"logits of a chunk", "--loss.chunk_rows"});
}

}  // namespace
}  // namespace draftsmith::ops
