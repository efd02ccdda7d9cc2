// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/mapped_file.h"

namespace draftsmith::formats {

/// The tensors of one safetensors file, or of all shards that `model.safetensors.index.json`
/// lists, read by memory map. Every field of a header is checked against the file before it is
/// believed: header length, names, dtypes (BF16, F16, F32, F64, I64, I32, I16, U8, BOOL, I8,
/// F8_E4M3), shapes, offsets inside the file, bytes = shape x dtype, no overlap and no gap.
class SafetensorsReader {
 public:
  /// One file. Errors: DataError naming the file and the tensor.
  static SafetensorsReader open_file(const std::filesystem::path& path);

  /// `model.safetensors` or the sharded index of a folder. The whole index is checked against
  /// all shards before this returns: a shard or a tensor that is missing is an error.
  static SafetensorsReader open_folder(const std::filesystem::path& folder);

  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> names() const;  // sorted

  /// Another name for a tensor that is there; `to` must be free.
  void rename(const std::string& from, const std::string& to);

  /// A view of the mapped file, never to be written; copied only if its bytes are not aligned
  /// for its dtype. Errors: DataError if there is no such tensor.
  torch::Tensor tensor(const std::string& name) const;

  /// The same, checked: DataError naming file and tensor if the shape differs.
  torch::Tensor tensor(const std::string& name, at::IntArrayRef shape) const;
  void check_shape(const std::string& name, at::IntArrayRef shape) const;

  /// Shape and dtype, without a look at the data. Errors: as `tensor`.
  const std::vector<int64_t>& shape(const std::string& name) const { return find(name).shape; }
  torch::ScalarType dtype(const std::string& name) const { return find(name).dtype; }

  /// A text of `__metadata__`, empty if there is none of this key.
  std::string metadata(const std::string& key) const;

  /// Lets the system take back the pages of a part of a tensor's data, which is not needed soon.
  void forget(const std::string& name, int64_t first_byte, int64_t bytes) const;

  const std::string& where() const { return where_; }

 private:
  struct Entry {
    std::shared_ptr<const MappedFile> file;
    const std::byte* data;
    torch::ScalarType dtype;
    std::vector<int64_t> shape;
  };

  void add_file(const std::filesystem::path& path);
  const Entry& find(const std::string& name) const;

  std::string where_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Writes one file aside and renames it. Tensors of any device and stride.
/// Errors: DeviceError if the disk refuses.
void write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace draftsmith::formats
