// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_folder.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/data/dataset_writer.h"

namespace draftsmith::testing {
namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "draftsmith-test-XXXXXX").string();
  DS_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

fs::path TempFolder::write(const std::string& name, const std::string& text) const {
  fs::create_directories((path_ / name).parent_path());
  std::ofstream(path_ / name, std::ios::binary) << text;
  return path_ / name;
}

std::vector<std::pair<std::string, std::string>> snapshot(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files.emplace_back(fs::relative(entry.path(), folder).string(), read_file(entry.path()));
  std::sort(files.begin(), files.end());
  return files;
}

fs::path write_dataset_folder(
    const TempFolder& folder,
    const std::string& name,
    const std::vector<data::TokenSequence>& sequences) {
  data::write_dataset(folder / name, sequences);
  return folder / name;
}

}  // namespace draftsmith::testing
