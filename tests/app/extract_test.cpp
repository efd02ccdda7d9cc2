// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/extract.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/data/dataset_fingerprint.h"
#include "draftsmith/formats/model_fingerprint.h"
#include "draftsmith/formats/safetensors.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::run_program;
using testing::TempFolder;

struct Extract : ::testing::TestWithParam<const char*> {
  TempFolder folder;
  fs::path target = testing::fixture(GetParam());
  fs::path dataset = testing::write_tiny_dataset(folder);
  fs::path features = folder / "features";

  Arguments extract_arguments(const std::string& format = "bf16") const {
    return {"extract", "--target.path=" + target.string(), "--data.path=" + dataset.string(),
            "--drafter.target_layer_ids=0,2", "--data.max_sequences_per_batch=2",
            "--extract.out=" + features.string(), "--extract.format=" + format};
  }
  Arguments train_arguments(const fs::path& data, const fs::path& out) const {
    return testing::train_arguments(target, data, out, 3) +
           Arguments{"--target.dtype=bfloat16"};
  }
  testing::ProcessResult expect_done(const Arguments& arguments) const {
    auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::string weights_of(const fs::path& run) const {
    return read_file(run / "checkpoints/step-3/model.safetensors");
  }
  /// A folder as of `extract_arguments` killed after the first batch, in shards of one batch.
  fs::path write_stopped(data::FeatureHeader header) const {
    const fs::path stopped = folder / "stopped";
    model::TargetSettings settings;
    settings.path = target.string();
    const auto loaded = model::Target::load(settings);
    data::DataSettings data_settings;
    data_settings.path = dataset.string();
    data_settings.max_sequences_per_batch = 2;
    auto source =
        data::BatchSource::open(data_settings, loaded.config().vocab_size, folder.path());
    fs::copy(dataset, stopped, fs::copy_options::recursive);
    header.num_shards = 0;
    data::write_feature_header(stopped, header);
    const data::FeatureStore none(stopped, /*is_partial=*/true);
    data::FeatureWriter writer(stopped, header, 0, /*shard_bytes=*/1);
    struct Stop {};
    EXPECT_THROW(
        pipeline::extract_features(
            loaded, source, header.layers, none, writer,
            [](const auto&, const auto&) { throw Stop(); }),
        Stop);
    writer.finish();
    data::write_feature_header(stopped, header);  // as if it had been killed before its end
    return stopped;
  }
  /// Moments after one step, side by side: a multiple of the gradient.
  torch::Tensor gradient_of(const fs::path& run) const {
    const auto state =
        formats::SafetensorsReader::open_file(run / "checkpoints/step-1/optimizer.safetensors");
    std::vector<torch::Tensor> parts;
    for (const std::string& name : state.names())
      if (name.rfind("exp_avg.", 0) == 0)
        parts.push_back(state.tensor(name).to(torch::kDouble).flatten());
    return torch::cat(parts);
  }
};

TEST_P(Extract, TrainsToTheBitsOfTheTargetInTheLoop) {
  const auto extracted = expect_done(extract_arguments());
  EXPECT_NE(extracted.err.find("GiB free"), std::string::npos) << extracted.err;
  EXPECT_NE(extracted.out.find("features of 6 sequences"), std::string::npos) << extracted.out;
  expect_done(train_arguments(dataset, folder / "loop"));
  const auto trained = expect_done(train_arguments(features, folder / "stored"));
  EXPECT_NE(trained.err.find("only embedding and head"), std::string::npos) << trained.err;
  EXPECT_TRUE(weights_of(folder / "stored") == weights_of(folder / "loop"));
}

TEST_P(Extract, LeavesTheFirstWeightsToTheTargetsLayers) {
  if (formats::read_target_config(target).is_hybrid()) return;  // has none that a drafter takes
  expect_done(extract_arguments());
  const Arguments first = {"--drafter.init=target"};
  expect_done(train_arguments(dataset, folder / "loop") + first);
  expect_done(train_arguments(features, folder / "stored") + first);
  EXPECT_TRUE(weights_of(folder / "stored") == weights_of(folder / "loop"));
}

TEST_P(Extract, GoesOnWhereItStopped) {
  expect_done(extract_arguments());
  const data::FeatureStore whole(features);
  const fs::path stopped = write_stopped(whole.header());
  int64_t kept = 0;
  for (int64_t i = 0; i < 6; ++i)
    kept += data::FeatureStore(stopped, /*is_partial=*/true).has(i) ? 1 : 0;
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 6);
  auto arguments = extract_arguments();
  arguments.push_back("--extract.out=" + stopped.string());
  const auto result = expect_done(arguments);
  EXPECT_NE(result.out.find("features of 6 sequences"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(fmt::format("({} of them were there already)", kept)), std::string::npos) << result.out;
  const data::FeatureStore store(stopped);
  EXPECT_EQ(store.num_shards(), 2);
  for (int64_t i = 0; i < 6; ++i) {
    data::TokenBatch batch;
    batch.ids = torch::zeros({1, 12 + i}, torch::kLong);
    batch.parts = {{0, 0, 12 + i, i, 0}};
    EXPECT_TRUE(store.read(batch).features.equal(whole.read(batch).features)) << i;
  }
}

// Another dataset has sequences of the same numbers, and other batches would be there in part.
TEST_P(Extract, GoesOnOnlyWithTheDatasetAndTheBatchesThatItBeganWith) {
  expect_done(extract_arguments());
  const fs::path stopped = write_stopped(data::read_feature_header(features));
  const auto refuse = [&](const Arguments& more, const std::vector<std::string>& parts) {
    testing::expect_refused(
        folder, extract_arguments() + Arguments{"--extract.out=" + stopped.string()} + more, 2,
        parts);
  };
  std::vector<data::TokenSequence> others;
  for (uint64_t i = 0; i < 6; ++i)
    others.push_back(testing::make_sequence(12 + static_cast<int64_t>(i), 4, 100 + i));
  const auto other = testing::write_dataset_folder(folder, "other", others);
  refuse({"--data.path=" + other.string()}, {"extract.out", "this dataset", "6 sequences"});
  refuse({"--data.max_sequences_per_batch=3"}, {"and 3 sequences", "and 2 sequences"});
  refuse({"--data.seed=5"}, {"seed 5", "seed 0"});
  refuse({"--data.tokens_per_batch=34"}, {"34 tokens", "49152 tokens"});
  expect_done(extract_arguments() + Arguments{"--extract.out=" + stopped.string()});
}

TEST_P(Extract, GivesCloseGradientsWhenExtractedInOtherBatches) {
  const auto train = [&](const fs::path& data, const std::string& name) {
    expect_done(train_arguments(data, folder / name) + Arguments{"--train.max_steps=1"});
    return gradient_of(folder / name);
  };
  const auto loop = train(dataset, "loop");
  const Arguments batches[] = {
      {"--data.max_sequences_per_batch=1"}, {"--data.batching=pack", "--data.max_length=64"}};
  for (size_t i = 0; i < std::size(batches); ++i) {
    features = folder / fmt::format("features-{}", i);
    expect_done(extract_arguments() + batches[i]);
    const auto stored = train(features, fmt::format("stored-{}", i));
    const double cosine = (loop.dot(stored) / loop.norm() / stored.norm()).item<double>();
    EXPECT_GE(cosine, 0.9999) << batches[i].front();
  }
}

TEST_P(Extract, StaysCloseInNarrowFormats) {
  expect_done(extract_arguments());
  const data::FeatureStore whole(features);
  for (const char* format : {"fp8", "int8"}) {
    features = folder / format;
    expect_done(extract_arguments(format));
    data::TokenBatch batch;
    batch.ids = torch::zeros({1, 17}, torch::kLong);
    batch.parts = {{0, 0, 17, 5, 0}};
    const auto narrow = data::FeatureStore(features).read(batch);
    // Half a step of fp8's 3 bits, or of int8's 7 on a position's largest magnitude.
    EXPECT_LE(
        testing::relative_difference(narrow.features, whole.read(batch).features), std::exp2(-4));
    expect_done(train_arguments(features, folder / (std::string("run-") + format)));
  }
}

TEST_P(Extract, RefusesWhatDoesNotBelongTogether) {
  expect_done(extract_arguments());
  const auto refuse = [&](const Arguments& arguments, int code, std::vector<std::string> parts) {
    testing::expect_refused(folder, arguments, code, parts);
  };
  const fs::path out = folder / "run";
  refuse(
      train_arguments(features, out) + Arguments{"--drafter.target_layer_ids=0,1"}, 3,
      {"layers of the stored features", "[0, 1]", "[0, 2]"});
  refuse(
      train_arguments(features, out) +
          Arguments{"--target.path=" + testing::fixture("targets/llama-tiny").string()},
      3, {"target of the stored features"});
  refuse(extract_arguments(), 2, {"extract.out", "complete"});
  refuse(extract_arguments() + Arguments{"--extract.out=" + dataset.string()}, 2, {"extract.out"});
  refuse(
      extract_arguments() +
          Arguments{"--extract.layers=0,99", "--extract.out=" + (folder / "x").string()},
      2, {"layer", "99"});
  // Said before the dataset is copied, not when the first second window is met.
  refuse(
      extract_arguments() +
          Arguments{
              "--data.overlong=window", "--data.max_length=14",
              "--extract.out=" + (folder / "x").string()},
      2, {"data.overlong", "3 sequences", "14 tokens", "window"});
  const auto shard = data::feature_shard(features, 0);
  fs::resize_file(shard, fs::file_size(shard) - 3);
  refuse(train_arguments(features, out), 3, {"features-00000.safetensors"});
}

// A target of so wide and many layers that no disk holds its states.
TEST(ExtractRoom, IsAskedForWhatIsNotThereYet) {
  const TempFolder folder;
  const fs::path target = folder / "target";
  fs::create_directories(target);
  const fs::path tiny = testing::fixture("targets/qwen3-tiny");
  fs::copy_file(tiny / "model.safetensors", target / "model.safetensors");
  auto config = formats::read_json_file(tiny / "config.json");
  config["hidden_size"] = 1 << 20;
  config["num_hidden_layers"] = 1024;
  config.erase("layer_types");
  folder.write("target/config.json", config.dump());
  data::FeatureHeader header;
  for (int64_t i = 0; i < 1023; ++i)
    header.layers.push_back(i);
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 20; ++i)
    sequences.push_back(testing::make_sequence(4096, 4, i));
  const auto dataset = testing::write_dataset_folder(folder, "dataset", sequences);
  const fs::path features = folder / "features";
  const Arguments arguments = {
      "extract", "--target.path=" + target.string(), "--data.path=" + dataset.string(),
      fmt::format("--extract.layers={}", fmt::join(header.layers, ",")),
      "--extract.out=" + features.string()};
  testing::expect_refused(
      folder, arguments, 5, {"extract.out", "163840.00 GiB on the disk", "--extract.format=int8"});

  // Of a stopped extract that has them all: records without rows take no room here.
  header.hidden_size = 1 << 20;
  header.target = formats::fingerprint_model(target);
  header.dataset = data::fingerprint_dataset(data::TokenDataset::open(dataset, ""));
  data::DataSettings settings;
  settings.max_length = 4096;  // the target's positions
  header.batches = data::describe_batching(settings);
  fs::copy(dataset, features, fs::copy_options::recursive);
  data::write_feature_header(features, header);
  formats::NamedTensors records;
  for (size_t i = 0; i < sequences.size(); ++i)
    records.emplace_back(
        fmt::format("{}.states", i),
        torch::empty({0, header.num_parts() * header.hidden_size}, torch::kBFloat16));
  formats::write_safetensors(data::feature_shard(features, 0), records);
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 3) << result.err;  // no such weights: it went on to load them
  EXPECT_NE(result.err.find("at most 0.00 GiB to write"), std::string::npos) << result.err;
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    Extract,
    ::testing::Values("targets/qwen3-tiny", "targets/qwen3_5-tiny"),
    [](const auto& tested) { return testing::short_name(tested.param); });

}  // namespace
}  // namespace draftsmith::app
