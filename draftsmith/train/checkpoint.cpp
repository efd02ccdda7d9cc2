// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint.h"

#include <fmt/format.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/checksum.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/file_name.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
using formats::Json;
using formats::JsonObject;
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kManifestFile = "manifest.json";

std::string checksum_text(const fs::path& file) {
  return fmt::format("{:08x}", crc32c_of_file(file));
}

Json state_as_json(const TrainState& state) {
  const auto& [step, cursor, batches, tokens, seconds, best] = state.progress;
  const Schedule& schedule = state.schedule;
  const RunStamp& stamp = state.stamp;
  return {
      {"step", step},
      {"cursor", {{"epoch", cursor.epoch}, {"batch", cursor.batch}}},
      {"batches", batches},
      {"tokens", tokens},
      {"seconds", seconds},
      {"best", {{"step", best.step}, {"acceptance", best.acceptance}}},
      {"schedule",
       {{"kind", schedule.kind},
        {"peak", schedule.peak},
        {"warmup_steps", schedule.warmup_steps},
        {"total_steps", schedule.total_steps}}},
      {"settings", stamp.settings},
      {"dataset", stamp.dataset},
      {"target", stamp.target},
      {"build", {{"commit", stamp.commit}, {"is_changed", stamp.is_changed}}},
      {"plan", {{"chunk_rows", stamp.chunk_rows}, {"recomputes_layers", stamp.recomputes_layers}}},
      {"ranks", stamp.ranks}};
}

Json make_manifest(const fs::path& folder) {
  Json files = Json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = {
        {"bytes", entry.file_size()}, {"crc32c", checksum_text(entry.path())}};
  }
  Json manifest = Json::object();
  manifest["files"] = std::move(files);
  return manifest;
}

/// Throws a DataError that names the first file which is not as the manifest says.
void check_files(const fs::path& folder) {
  const auto files = JsonObject::from_file(folder / kManifestFile).object("files");
  for (const auto& [name, entry] : files.value().items()) {
    const JsonObject file(entry, fmt::format("{}, {}", files.where(), name));
    const int64_t bytes = file.integer("bytes", 0, INT64_MAX);
    if (!is_plain_file_name(name)) {
      throw DataError(
          {.what = kManifestFile,
           .expected = "names of files in its folder",
           .got = "'" + name + "'",
           .where = folder.string()});
    }
    const fs::path path = folder / name;
    std::error_code error;
    const uintmax_t found = fs::file_size(path, error);
    if (error) {
      throw DataError(
          {.what = name, .expected = "a file", .got = error.message(), .where = folder.string()});
    }
    if (found != static_cast<uintmax_t>(bytes)) {
      throw DataError(
          {.what = name,
           .expected = fmt::format("{} bytes", bytes),
           .got = fmt::format("{}", found),
           .where = folder.string()});
    }
    const std::string checksum = checksum_text(path);
    if (checksum != file.text("crc32c")) {
      throw DataError(
          {.what = name,
           .expected = "the checksum " + file.text("crc32c"),
           .got = checksum,
           .where = folder.string()});
    }
  }
  for (const char* name : {"config.json", "model.safetensors", kOptimizerFile, kStateFile})
    if (!files.has(name))
      throw DataError(
          {.what = kManifestFile,
           .expected = std::string("an entry for ") + name,
           .got = "none",
           .where = folder.string()});
}

}  // namespace

void write_checkpoint(const fs::path& folder, const TrainState& state) {
  StagedFolder staged(folder);
  state.drafter.save(staged.path(), state.drafter.dtype());
  formats::write_safetensors(staged.path() / kOptimizerFile, state.optimizer);
  write_file_atomically(staged.path() / kStateFile, state_as_json(state).dump(2));
  write_file_atomically(staged.path() / kManifestFile, make_manifest(staged.path()).dump(2));
  staged.publish();
}

std::optional<std::string> find_damage(const fs::path& folder) {
  try {
    check_files(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return std::nullopt;
}

TrainProgress read_progress(const fs::path& folder) {
  const auto json = JsonObject::from_file(folder / kStateFile);
  const auto cursor = json.object("cursor");
  const auto best = json.object("best");
  TrainProgress progress;
  progress.step = json.integer("step", 0, kMostCounted);
  progress.cursor = {
      cursor.integer("epoch", 0, kMostCounted), cursor.integer("batch", 0, kMostCounted)};
  progress.batches = json.integer("batches", 0, kMostCounted);
  progress.tokens = json.integer("tokens", 0, kMostCounted);
  progress.seconds = json.number("seconds");
  progress.best = {best.integer("step", -1, kMostCounted), best.number("acceptance")};
  return progress;
}

RunStamp read_stamp(const fs::path& folder) {
  const auto json = JsonObject::from_file(folder / kStateFile);
  const auto settings = json.object("settings");
  const auto build = json.object("build");
  RunStamp stamp;
  for (const auto& [key, value] : settings.value().items()) {
    if (!value.is_string())
      throw DataError(
          {.what = key, .expected = "a text", .got = value.type_name(), .where = settings.where()});
    stamp.settings[key] = value.get<std::string>();
  }
  stamp.dataset = json.text("dataset");
  stamp.target = json.text("target");
  stamp.commit = build.text("commit");
  stamp.is_changed = build.boolean_or("is_changed", false);
  const auto plan = json.object("plan");
  stamp.chunk_rows = plan.integer("chunk_rows", 0, kMostCounted);
  stamp.recomputes_layers = plan.boolean_or("recomputes_layers", false);
  stamp.ranks = json.integer_or("ranks", 1, 1, kMostCounted);
  return stamp;
}

Schedule read_schedule(const fs::path& folder) {
  const auto json = JsonObject::from_file(folder / kStateFile).object("schedule");
  return {
      json.text("kind"), json.number("peak"), json.integer("warmup_steps", 0, kMostCounted),
      json.integer("total_steps", 1, kMostCounted)};
}

void load_optimizer(const fs::path& folder, AdamW& optimizer) {
  const auto reader = formats::SafetensorsReader::open_file(folder / kOptimizerFile);
  optimizer.load_state(reader, read_progress(folder).step);
}

}  // namespace draftsmith::train
