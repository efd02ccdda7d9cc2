// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace draftsmith::formats {

/// A file mapped read-only into memory; pages are read when they are touched. Tensors that view
/// it hold the shared pointer, so the mapping lives as long as they do.
class MappedFile {
 public:
  /// Errors: DataError if the file cannot be opened or mapped, or is empty.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

  /// Gives the pages that lie wholly in this part back to the system; they are read again when
  /// they are touched again.
  void forget(const std::byte* begin, size_t bytes) const;

 private:
  MappedFile(const std::byte* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  const std::byte* data_;
  size_t size_bytes_;
};

}  // namespace draftsmith::formats
