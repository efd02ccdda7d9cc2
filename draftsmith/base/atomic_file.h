// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace draftsmith {

/// The whole file as bytes. Errors: DataError if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes `bytes` aside, flushes them to the disk and renames over `path`: readers see the old
/// file or the new one, never a part. Errors: DeviceError with the system's reason.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// A file that could not be written, with the system's reason. Errors: DeviceError, always.
[[noreturn]] void fail_write(const std::filesystem::path& path, const std::string& reason);

/// Flushes a file or folder that was written by other means to the disk.
void flush_to_disk(const std::filesystem::path& path);

/// Makes a folder with its parents. Errors: ConfigError naming `setting` if that fails or if
/// files cannot be made in it.
void make_writable_folder(const std::filesystem::path& path, std::string_view setting);

/// A folder that appears complete or not at all. Files are written into `path()`, a hidden
/// neighbour of the final folder; `publish()` flushes them and renames. Unpublished: removed.
class StagedFolder {
 public:
  /// Errors: DeviceError if the staging folder cannot be made.
  explicit StagedFolder(std::filesystem::path final_path);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder();

  const std::filesystem::path& path() const { return staging_; }

  /// An existing final folder is replaced.
  void publish();

 private:
  std::filesystem::path final_;
  std::filesystem::path staging_;
  bool is_published_ = false;
};

}  // namespace draftsmith
