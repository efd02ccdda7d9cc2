// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/prompts.h"

#include <fmt/format.h>

#include <sstream>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/data/token_dataset.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {

std::vector<Prompt> read_prompts(const std::filesystem::path& path, int64_t vocab_size) {
  std::istringstream lines(read_file(path));
  std::vector<Prompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", path.string(), number);
    const formats::JsonObject json(formats::parse_json(line, where), where);
    Prompt prompt{json.integers("input_ids"), json.text_or("set", "")};
    if (prompt.ids.empty())
      throw DataError(
          {.what = "input_ids", .expected = "at least one id", .got = "none", .where = where});
    check_token_ids(prompt.ids, vocab_size, where);
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    throw DataError(
        {.what = "prompts",
         .expected = "at least one line",
         .got = "none",
         .where = path.string()});
  }
  return prompts;
}

}  // namespace draftsmith::data
