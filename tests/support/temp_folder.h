// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::testing {

/// A new empty folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  /// Writes a text file and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

/// All files below a folder with their contents, to show that nothing changed.
std::vector<std::pair<std::string, std::string>> snapshot(const std::filesystem::path& folder);

/// Writes sequences as a dataset folder and returns its path.
std::filesystem::path write_dataset_folder(
    const TempFolder& folder,
    const std::string& name,
    const std::vector<data::TokenSequence>& sequences);

}  // namespace draftsmith::testing
