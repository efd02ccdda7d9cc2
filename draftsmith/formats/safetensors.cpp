// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/file_name.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DtypeName {
  const char* name;
  torch::ScalarType dtype;
};

constexpr DtypeName kDtypes[] = {{"BF16", torch::kBFloat16},      {"F16", torch::kHalf},
                                 {"F32", torch::kFloat},          {"F64", torch::kDouble},
                                 {"I64", torch::kLong},           {"I32", torch::kInt},
                                 {"I16", torch::kShort},          {"U8", torch::kByte},
                                 {"BOOL", torch::kBool},          {"I8", torch::kChar},
                                 {"F8_E4M3", c10::kFloat8_e4m3fn}};

[[noreturn]] void
fail(const fs::path& path, std::string what, std::string expected, std::string got) {
  throw DataError(
      {.what = std::move(what),
       .expected = std::move(expected),
       .got = std::move(got),
       .where = path.string(),
       .hint = "writing or fetching the file again"});
}

torch::ScalarType
parse_dtype(const fs::path& path, const std::string& tensor, const std::string& name) {
  for (const auto& entry : kDtypes)
    if (name == entry.name) return entry.dtype;
  fail(path, tensor, "dtype BF16, F16, F32, F64, I64, I32, I16, U8, BOOL, I8 or F8_E4M3", name);
}

const char* dtype_name(torch::ScalarType dtype) {
  for (const auto& entry : kDtypes)
    if (dtype == entry.dtype) return entry.name;
  throw ShapeError(
      {.what = "safetensors", .expected = "a dtype the format has", .got = c10::toString(dtype)});
}

/// A tensor's place in the data part; sizes are those of its shape.
struct Extent {
  uint64_t begin, end;
  std::string name;
};

/// Product of the shape and the element size, or nothing if it does not fit 62 bits. Sizes of 0
/// count as 1 for that: strides are products too.
std::optional<uint64_t> count_bytes(const std::vector<int64_t>& shape, size_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const int64_t size : shape) {
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes >> 62) return std::nullopt;
  }
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? bytes : 0;
}

std::vector<int64_t> read_shape(const JsonObject& entry) {
  if (!entry.has("shape") || !entry.value().at("shape").is_array())
    throw DataError({.what = "shape", .expected = "a list", .got = "none", .where = entry.where()});
  auto shape = entry.integers("shape");
  for (const int64_t size : shape) {
    if (size < 0)
      throw DataError(
          {.what = "shape",
           .expected = "sizes >= 0",
           .got = fmt::format("{}", shape),
           .where = entry.where()});
  }
  return shape;
}

/// The file holds each byte of its data part exactly once.
void check_extents(const fs::path& path, std::vector<Extent> extents, uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& left, const Extent& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end)
      fail(path, extent.name, fmt::format("data at byte {}", end), fmt::format("{}", extent.begin));
    end = extent.end;
  }
  if (end != data_bytes) {
    fail(
        path, "file size", fmt::format("{} bytes of tensor data, as the header says", end),
        fmt::format("{}", data_bytes));
  }
}

}  // namespace

void SafetensorsReader::add_file(const fs::path& path) {
  const auto file = MappedFile::open(path);
  uint64_t header_bytes = 0;
  if (file->size_bytes() < sizeof(header_bytes))
    fail(path, "file size", "at least 8 bytes", fmt::format("{}", file->size_bytes()));
  std::memcpy(&header_bytes, file->data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file->size_bytes() - sizeof(header_bytes)) {
    fail(
        path, "header length", fmt::format("at most the file's {} bytes", file->size_bytes()),
        fmt::format("{}", header_bytes));
  }
  const std::byte* data = file->data() + sizeof(header_bytes) + header_bytes;
  const uint64_t data_bytes = file->size_bytes() - sizeof(header_bytes) - header_bytes;
  const std::string_view header(
      reinterpret_cast<const char*>(file->data()) + sizeof(header_bytes), header_bytes);
  const JsonObject root(parse_json(header, path.string()), path.string());

  std::vector<Extent> extents;
  for (const auto& [name, value] : root.value().items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) continue;
      for (const auto& [key, text] : value.items())
        if (text.is_string()) metadata_[key] = text.get<std::string>();
      continue;
    }
    const JsonObject entry(value, fmt::format("{}, tensor {}", path.string(), name));
    const auto dtype = parse_dtype(path, name, entry.text("dtype"));
    auto shape = read_shape(entry);
    const auto offsets = entry.integers("data_offsets");
    const auto bytes = count_bytes(shape, c10::elementSize(dtype));
    const bool is_sane = offsets.size() == 2 && offsets[0] >= 0 && offsets[1] >= offsets[0] &&
                         static_cast<uint64_t>(offsets[1]) <= data_bytes;
    if (!is_sane)
      fail(
          path, name, fmt::format("offsets within {} data bytes", data_bytes),
          fmt::format("{}", offsets));
    const auto begin = static_cast<uint64_t>(offsets[0]);
    const auto end = static_cast<uint64_t>(offsets[1]);
    if (!bytes || *bytes != end - begin)
      fail(
          path, name, fmt::format("bytes for shape {} of {}", shape, entry.text("dtype")),
          fmt::format("{}", end - begin));
    extents.push_back({begin, end, name});
    if (!entries_.emplace(name, Entry{file, data + begin, dtype, std::move(shape)}).second)
      fail(path, name, "one tensor of this name", "a second one");
  }
  check_extents(path, std::move(extents), data_bytes);
}

SafetensorsReader SafetensorsReader::open_file(const fs::path& path) {
  SafetensorsReader reader;
  reader.where_ = path.string();
  reader.add_file(path);
  return reader;
}

SafetensorsReader SafetensorsReader::open_folder(const fs::path& folder) {
  const fs::path index_path = folder / "model.safetensors.index.json";
  if (!fs::exists(index_path)) {
    if (fs::exists(folder / "model.safetensors")) return open_file(folder / "model.safetensors");
    throw DataError(
        {.what = "weights",
         .expected = "model.safetensors or model.safetensors.index.json",
         .got = "neither",
         .where = folder.string(),
         .hint = "the folder of a safetensors model"});
  }
  const JsonObject map = JsonObject::from_file(index_path).object("weight_map");
  std::set<std::string> shards;
  for (const auto& [name, value] : map.value().items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (!is_plain_file_name(shard))
      fail(index_path, name, "a file name without folders", "'" + shard + "'");
    shards.insert(shard);
  }
  SafetensorsReader reader;
  reader.where_ = index_path.string();
  for (const std::string& shard : shards)
    reader.add_file(folder / shard);
  for (const auto& [name, value] : map.value().items()) {
    if (!reader.has(name))
      fail(folder / value.get<std::string>(), name, "a tensor of this name", "none");
  }
  return reader;
}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : entries_)
    result.push_back(name);
  return result;
}

void SafetensorsReader::rename(const std::string& from, const std::string& to) {
  DS_CHECK(!has(to));
  auto node = entries_.extract(from);
  DS_CHECK(!node.empty());
  node.key() = to;
  entries_.insert(std::move(node));
}

const SafetensorsReader::Entry& SafetensorsReader::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw DataError(
        {.what = name, .expected = "a tensor of this name", .got = "none", .where = where_});
  return found->second;
}

torch::Tensor SafetensorsReader::tensor(const std::string& name) const {
  const Entry& entry = find(name);
  // from_blob wants a mutable pointer; the mapping is read-only, so a write would fault at once.
  auto view = torch::from_blob(
      const_cast<std::byte*>(entry.data), entry.shape, [file = entry.file](void*) {},
      torch::TensorOptions(entry.dtype));
  const auto address = reinterpret_cast<uintptr_t>(entry.data);
  if (address % c10::elementSize(entry.dtype) == 0) return view;
  auto copy = torch::empty(entry.shape, view.options());
  std::memcpy(copy.data_ptr(), entry.data, copy.nbytes());
  return copy;
}

torch::Tensor SafetensorsReader::tensor(const std::string& name, at::IntArrayRef shape) const {
  check_shape(name, shape);
  return tensor(name);
}

void SafetensorsReader::check_shape(const std::string& name, at::IntArrayRef shape) const {
  const Entry& entry = find(name);
  if (shape == at::IntArrayRef(entry.shape)) return;
  throw DataError(
      {.what = name,
       .expected = fmt::format("shape {}", shape.vec()),
       .got = fmt::format("{}", entry.shape),
       .where = where_,
       .hint = "the weights that belong to this config.json"});
}

std::string SafetensorsReader::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? std::string() : found->second;
}

void SafetensorsReader::forget(const std::string& name, int64_t first_byte, int64_t bytes) const {
  const Entry& entry = find(name);
  entry.file->forget(entry.data + first_byte, static_cast<size_t>(bytes));
}

void write_safetensors(
    const fs::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = offset + static_cast<uint64_t>(tensor.nbytes());
    header[name] = {
        {"dtype", dtype_name(tensor.scalar_type())},
        {"shape", tensor.sizes().vec()},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that tensor data is aligned
  const uint64_t header_bytes = text.size();

  fs::path aside = path;
  aside += ".partial";
  std::ofstream stream(aside, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    const auto host = tensor.detach().cpu().contiguous();
    stream.write(
        static_cast<const char*>(host.data_ptr()), static_cast<std::streamsize>(host.nbytes()));
  }
  stream.close();
  if (!stream) fail_write(aside, std::strerror(errno));
  flush_to_disk(aside);
  std::error_code error;
  fs::rename(aside, path, error);
  if (error) fail_write(path, error.message());
}

}  // namespace draftsmith::formats
