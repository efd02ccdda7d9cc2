// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/bad_step.h"

#include <fmt/format.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/train/checkpoint.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
using formats::Json;
namespace {

Json ids_as_json(const data::TokenBatch& tokens) {
  Json rows = Json::array();
  const auto ids = tokens.ids.contiguous();
  for (size_t b = 0; b < tokens.lengths.size(); ++b) {
    const int64_t* row = ids.data_ptr<int64_t>() + static_cast<int64_t>(b) * ids.size(1);
    rows.push_back(std::vector<int64_t>(row, row + tokens.lengths[b]));
  }
  return rows;
}

}  // namespace

fs::path write_bad_step(const fs::path& run_folder, const BadStep& step) {
  Json batches = Json::array();
  for (const auto& [cursor, tokens] : step.batches) {
    batches.push_back(
        {{"epoch", cursor.epoch},
         {"batch", cursor.batch},
         {"sequences", tokens.sequences},
         {"ids", ids_as_json(tokens)}});
  }
  // JSON knows no NaN: the two figures are texts.
  const Json json = {
      {"step", step.weights_step + 1},
      {"first_batch", step.first_batch},
      {"seed", step.seed},
      {"loss", fmt::format("{}", step.loss)},
      {"grad_norm", fmt::format("{}", step.gradient_norm)},
      {"batches", batches}};
  const fs::path folder = run_folder / "bad_batches";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_write(folder, error.message());
  const fs::path file =
      folder / fmt::format("step-{}-batch-{}.json", step.weights_step + 1, step.first_batch);
  write_file_atomically(file, json.dump());
  return file;
}

ReplayFile read_bad_step(const fs::path& file) {
  const auto json = formats::JsonObject::from_file(file);
  ReplayFile replay;
  replay.run_folder = fs::absolute(file).parent_path().parent_path();
  replay.weights_step = json.integer("step", 1, kMostCounted) - 1;
  const Json batches = json.value().value("batches", Json());
  if (!batches.is_array() || batches.empty()) {
    throw DataError(
        {.what = "batches",
         .expected = "a list of batches",
         .got = batches.dump().substr(0, 40),
         .where = file.string()});
  }
  for (const Json& item : batches) {
    const formats::JsonObject batch(item, file.string());
    replay.cursors.push_back(
        {batch.integer("epoch", 0, kMostCounted), batch.integer("batch", 0, kMostCounted)});
    replay.sequences.push_back(batch.integers("sequences"));
  }
  return replay;
}

}  // namespace draftsmith::train
