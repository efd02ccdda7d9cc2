// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/layout_check.h"

#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"

#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::eval {
namespace {

using testing::fixture;
using testing::TempFolder;

model::Drafter sliding_drafter() {
  return model::Drafter::load(fixture("drafter/sliding"), torch::kFloat);
}

/// An exported folder and the states of the drafter that it was written from.
struct ExportedFolder {
  TempFolder folder;
  model::Drafter drafter = sliding_drafter();

  ExportedFolder() {
    drafter.save(folder.path(), torch::kFloat);
    write_layout_case(layout_case(), drafter);
  }
  std::filesystem::path layout_case() const { return folder / "case.safetensors"; }
  LayoutReport check() const { return check_exported_folder(folder.path(), layout_case()); }
  void change_config(const std::function<void(formats::Json&)>& change) const {
    auto json = formats::read_json_file(folder / "config.json");
    change(json);
    write_file_atomically(folder / "config.json", json.dump());
  }
};

TEST(LayoutInputs, HaveAnchorsOnBothSidesOfTheWindow) {
  const auto drafter = sliding_drafter();  // blocks of 4, a window of 6
  const auto inputs = make_layout_inputs(drafter.config());
  const auto anchors = inputs.anchors[0];
  EXPECT_TRUE(anchors.equal(torch::tensor({0, 1, 2, 4, 5, 6, 10, 64}, torch::kLong)));
  EXPECT_EQ(inputs.features.size(1), 65);
  EXPECT_TRUE(inputs.features.equal(make_layout_inputs(drafter.config()).features));
}

// Check 4 of the specification: the layout of training gives what decoding computes.
TEST(LayoutCheck, FindsTrainingAndDecodingAlike) {
  for (const char* name : {"drafter/full", "drafter/sliding"}) {
    const auto drafter = model::Drafter::load(fixture(name), torch::kFloat);
    const auto inputs = make_layout_inputs(drafter.config());
    EXPECT_LE(
        testing::relative_difference(
            decoding_states(drafter, inputs), training_states(drafter, inputs)),
        layout_tolerance(drafter.config(), inputs))
        << name;
  }
}

TEST(LayoutCheck, PassesAFolderThatSaysWhatWasTrained) {
  const ExportedFolder exported;
  const auto report = exported.check();
  EXPECT_TRUE(report.is_good()) << report.export_difference << " " << report.layout_difference;
  EXPECT_LT(report.tolerance, 1e-5);
}

TEST(LayoutCheck, SeesEveryKeyThatChangesTheStates) {
  const std::vector<std::pair<const char*, formats::Json>> changes = {
      {"sliding_window", 7},
      {"layer_types", {"full_attention", "full_attention"}},
      {"is_causal", false},
      {"rms_norm_eps", 1e-2},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  for (const auto& [key, value] : changes) {
    const ExportedFolder exported;
    exported.change_config([&](formats::Json& json) { json[key] = value; });
    const auto report = exported.check();
    EXPECT_TRUE(report.config_differences.empty()) << key;
    EXPECT_GT(report.export_difference, report.tolerance) << key;
    EXPECT_FALSE(report.is_good()) << key;
  }
}

TEST(LayoutCheck, SeesKeysThatStatesDoNotShow) {
  const std::vector<std::pair<const char*, formats::Json>> changes = {
      {"mask_token_id", 204}, {"target_layer_ids", {1, 2}}};
  for (const auto& [key, value] : changes) {
    const ExportedFolder exported;
    exported.change_config([&](formats::Json& json) { json["dflash_config"][key] = value; });
    const auto report = exported.check();
    ASSERT_EQ(report.config_differences.size(), 1U) << key;
    EXPECT_EQ(report.config_differences[0].find(key), 0U) << report.config_differences[0];
    EXPECT_FALSE(report.is_good());
  }
}

TEST(LayoutCheck, SeesAWeightThatIsNotTheTrainedOne) {
  ExportedFolder exported;
  const at::NoGradGuard no_grad;
  const auto& [name, weight] = exported.drafter.parameters().back();
  weight[0] += 1;
  exported.drafter.save(exported.folder.path(), torch::kFloat);
  EXPECT_GT(exported.check().export_difference, 1e-3) << name;
}

TEST(LayoutCheck, FailsOnNumbersThatAreNotFinite) {
  ExportedFolder exported;
  const at::NoGradGuard no_grad;
  exported.drafter.parameters().front().second.fill_(std::nan(""));
  exported.drafter.save(exported.folder.path(), torch::kFloat);
  write_layout_case(exported.layout_case(), exported.drafter);
  EXPECT_FALSE(exported.check().is_good());
}

}  // namespace
}  // namespace draftsmith::eval
