// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/text_prompts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

/// Whether a line gives a prompt as text alone. Lines that are no objects are left to the reader.
bool has_text_lines(const std::string& path) {
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = formats::parse_json_or_null(line);
    if (json.is_object() && json.contains("text") && !json.contains("input_ids")) return true;
  }
  return false;
}

[[noreturn]] void fail(const std::string& path, const std::string& got, const std::string& hint) {
  throw DataError(
      {.what = "prompts",
       .expected = "input_ids, or text that can be tokenised",
       .got = got,
       .where = path,
       .hint = hint});
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "draftsmith-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw DeviceError(
          {.what = "temporary folder",
           .expected = "to make one",
           .got = "no permission",
           .where = name,
           .hint = "setting TMPDIR"});
    }
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// The exit status of a program, its stderr written to a file.
int run(const std::vector<std::string>& command, const std::string& errors) {
  std::vector<char*> arguments;
  for (const std::string& part : command)
    arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(
      &actions, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  int status = -1;
  if (failed != 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

std::vector<data::Prompt>
read_text_prompts(const std::string& path, const std::string& target_folder, int64_t vocab_size) {
  if (!has_text_lines(path)) return data::read_prompts(path, vocab_size);
  if (!fs::exists(fs::path(target_folder) / "tokenizer.json"))
    fail(path, "text for a target without tokenizer.json", "giving input_ids");
  // The program stands in build/PRESET/bin of the repository that holds the tools.
  const auto root = fs::read_symlink("/proc/self/exe").parent_path() / "../../..";
  const auto python = root / ".venv/bin/python";
  const auto tool = root / "tools/tokenize_prompts.py";
  if (!fs::exists(python) || !fs::exists(tool))
    fail(path, "text, and no tools beside the program", "tools/tokenize_prompts.py where it is");
  const TempFolder folder;
  const int status =
      run({python.string(), tool.string(), "--model", target_folder, "--prompts", path, "--out",
           folder / "prompts.jsonl"},
          folder / "errors");
  if (status != 0) {
    std::string message = read_file(folder / "errors");
    while (!message.empty() && (message.back() == '\n' || message.back() == '.'))
      message.pop_back();
    fail(path, "'" + message + "'", "tools/tokenize_prompts.py --help");
  }
  return data::read_prompts(folder / "prompts.jsonl", vocab_size);
}

void check_prompt_lengths(
    const std::vector<data::Prompt>& prompts,
    const formats::TargetConfig& target,
    const std::string& key,
    int64_t new_tokens,
    int64_t drafts) {
  const int64_t limit = target.max_position_embeddings;
  const auto longest = std::max_element(
      prompts.begin(), prompts.end(),
      [](const auto& left, const auto& right) { return left.ids.size() < right.ids.size(); });
  const auto length = static_cast<int64_t>(longest->ids.size());
  if (limit == 0 || length + new_tokens + drafts <= limit) return;
  const int64_t room = limit - length - drafts;
  const ErrorText text = {
      .what = key,
      .expected = fmt::format("at most {}, the target's max_position_embeddings, in all", limit),
      .got = fmt::format(
          "{} tokens of prompt {} + {}{}", length, longest - prompts.begin() + 1, new_tokens,
          drafts > 0 ? fmt::format(" + {} drafts", drafts) : ""),
      .where = "the prompts",
      .hint = room > 0 ? fmt::format("--{}={}", key, room) : "shorter prompts"};
  if (room > 0) throw ConfigError(text);
  throw DataError(text);
}

}  // namespace draftsmith::app
