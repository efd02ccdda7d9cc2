// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/child_process.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/eval/layout_check.h"
#include "draftsmith/formats/drafter_config_writing.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/safetensors.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/train/checkpoint_list.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightFile = "model.safetensors";

void require_source(const std::string& init) {
  if (init != "random" && init != "target") return;
  throw ConfigError(
      {.what = "drafter.init",
       .expected = "a run folder, a checkpoint or a drafter folder",
       .got = "'" + init + "'",
       .where = "export",
       .hint = "--drafter.init=DIR"});
}

/// `--out`, or `export/` of the run that is exported.
fs::path choose_out(const std::string& out, const std::string& init) {
  if (!out.empty()) return out;
  if (train::find_newest_checkpoint(init)) return fs::path(init) / "export";
  throw ConfigError(
      {.what = "--out",
       .expected = "a folder, since drafter.init is no run folder",
       .got = "none",
       .where = "export",
       .hint = "--out DIR"});
}

/// A folder that is replaced holds an earlier export and nothing else.
void refuse_other_files(const fs::path& out) {
  std::error_code error;
  const bool is_file = fs::exists(out, error) && !fs::is_directory(out, error);
  std::string other = is_file ? out.filename().string() : "";
  for (const auto& entry : fs::directory_iterator(out, error)) {
    const std::string name = entry.path().filename().string();
    if (name != kConfigFile && name != kWeightFile) other = name;
  }
  if (other.empty()) return;
  throw ConfigError(
      {.what = "--out",
       .expected = "a new folder or an earlier export",
       .got = "'" + other + "'",
       .where = out.string(),
       .hint = "another folder"});
}

/// Whose head and embedding the drafter borrows, as far as the command line says it.
formats::Verifier read_verifier(const std::string& target_path, const std::string& name) {
  if (target_path.empty()) return {};
  const auto json = formats::JsonObject::from_file(fs::path(target_path) / kConfigFile);
  formats::Verifier verifier;
  verifier.name = name.empty() ? fs::absolute(target_path).lexically_normal().string() : name;
  if (json.has("architectures")) verifier.architectures = json.texts("architectures");
  return verifier;
}

void check_target(formats::DrafterConfig& config, const std::string& target_path) {
  if (target_path.empty()) return;
  const auto target = formats::read_target_config(target_path);
  if (config.num_target_layers == 0) config.num_target_layers = target.num_layers;
  model::check_fits_target(config, target, target_path);
}

void write_folder(
    const fs::path& folder,
    const model::Drafter& drafter,
    const std::string& config_text) {
  write_file_atomically(folder / kConfigFile, config_text);
  formats::write_safetensors(
      folder / kWeightFile, {drafter.parameters().begin(), drafter.parameters().end()});
}

[[noreturn]] void fail_check_of(const fs::path& out, std::string expected, std::string got) {
  throw DataError(
      {.what = "export check",
       .expected = std::move(expected),
       .got = std::move(got),
       .where = out.string() + " was not written",
       .hint = "another checkpoint, or reporting this as a bug"});
}

/// Lets a fresh process load the folder and compare it with the drafter in memory.
void check_folder(const fs::path& folder, const fs::path& out, const model::Drafter& drafter) {
  const fs::path layout_case = folder / "layout_case.safetensors";
  eval::write_layout_case(layout_case, drafter);
  const auto child =
      run_self({"export-check", "--drafter", folder.string(), "--input", layout_case.string()});
  fs::remove(layout_case);
  if (child.exit_code != 0)
    fail_check_of(
        out, "a folder that loads in a fresh process",
        fmt::format(
            "exit code {}: {}", child.exit_code, child.err.substr(0, child.err.find('\n'))));
  const formats::JsonObject report(formats::parse_json(child.out, "export-check"), "export-check");
  const auto differences = report.texts("config_differences");
  if (!differences.empty())
    fail_check_of(out, "the config of training", fmt::format("{}", fmt::join(differences, "; ")));
  const double tolerance = report.number("tolerance");
  for (const char* key : {"export_difference", "layout_difference"}) {
    // JSON has no infinity: a difference that is not finite is written as null.
    const double difference = report.number_or(key, 2);
    if (!(difference <= tolerance))
      fail_check_of(
          out, fmt::format("{} up to {:.1e}", key, tolerance),
          report.has(key) ? fmt::format("{:.1e}", difference) : "numbers that are not finite");
  }
  log_info(
      "checked in a fresh process: the files against memory {:.1e}, training layout against "
      "decoding layout {:.1e} (allowed {:.1e})",
      report.number("export_difference"), report.number("layout_difference"), tolerance);
}

}  // namespace

void run_export(RunConfig config, const Flags& flags) {
  const auto reader = formats::parse_drafter_reader(flags.format);
  require_source(config.drafter.init);
  const fs::path out = choose_out(flags.out, config.drafter.init);
  refuse_other_files(out);
  const std::string source = resolve_drafter_folder(config.drafter.init);
  const auto verifier = read_verifier(config.target.path, flags.target_name);
  if (reader == formats::DrafterReader::kSpeculators && verifier.name.empty()) {
    throw ConfigError(
        {.what = "target.path",
         .expected = "the target's folder, which the speculators format names",
         .got = "none",
         .where = "export",
         .hint = "--target.path=DIR"});
  }
  auto drafter_config = formats::read_drafter_config(source);
  check_target(drafter_config, config.target.path);
  const std::string text = formats::write_drafter_config(drafter_config, reader, verifier);

  const auto drafter = model::Drafter::load(source, torch::kBFloat16);
  StagedFolder staged(out);
  write_folder(staged.path(), drafter, text);
  if (flags.check) check_folder(staged.path(), out, drafter);
  staged.publish();
  const std::string limits = formats::describe_reader_limits(drafter_config, reader);
  if (!limits.empty()) log_warning(limits);
  print_result(
      "{}: {} tensors in bfloat16 from {}, {} draft tokens a round", out.string(),
      drafter.parameters().size(), source, drafter_config.block_size - 1);
}

void run_export_check(const Flags& flags) {
  const auto report = eval::check_exported_folder(flags.drafter, flags.input);
  const formats::Json json = {
      {"config_differences", report.config_differences},
      {"export_difference", report.export_difference},
      {"layout_difference", report.layout_difference},
      {"tolerance", report.tolerance}};
  print_line(json.dump());
}

}  // namespace draftsmith::app
