// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_writer.h"

#include <algorithm>
#include <memory>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {
namespace {

constexpr size_t kRowsPerRecordBatch = 1000;
constexpr const char* kShardName = "data-00000-of-00001.arrow";

void require(const arrow::Status& status, const std::filesystem::path& path) {
  if (!status.ok()) fail_write(path, status.message());
}

std::shared_ptr<arrow::RecordBatch> make_record_batch(
    const std::shared_ptr<arrow::Schema>& schema,
    const std::vector<TokenSequence>& sequences,
    size_t begin,
    size_t end,
    const std::filesystem::path& path) {
  auto* pool = arrow::default_memory_pool();
  auto ids = std::make_shared<arrow::Int32Builder>(pool);
  auto mask = std::make_shared<arrow::Int8Builder>(pool);
  arrow::ListBuilder id_lists(pool, ids);
  arrow::ListBuilder mask_lists(pool, mask);
  for (size_t i = begin; i < end; ++i) {
    require(id_lists.Append(), path);
    require(mask_lists.Append(), path);
    for (const int64_t id : sequences[i].ids)
      require(ids->Append(static_cast<int32_t>(id)), path);
    for (const uint8_t bit : sequences[i].mask)
      require(mask->Append(static_cast<int8_t>(bit)), path);
  }
  std::shared_ptr<arrow::Array> id_array;
  std::shared_ptr<arrow::Array> mask_array;
  require(id_lists.Finish(&id_array), path);
  require(mask_lists.Finish(&mask_array), path);
  return arrow::RecordBatch::Make(
      schema, static_cast<int64_t>(end - begin), {id_array, mask_array});
}

formats::Json describe_list(const char* dtype) {
  return {{"feature", {{"dtype", dtype}, {"_type", "Value"}}}, {"_type", "List"}};
}

}  // namespace

void write_dataset(
    const std::filesystem::path& folder,
    const std::vector<TokenSequence>& sequences) {
  StagedFolder staged(folder);
  const auto path = staged.path() / kShardName;
  const auto schema = arrow::schema(
      {arrow::field("input_ids", arrow::list(arrow::int32())),
       arrow::field("loss_mask", arrow::list(arrow::int8()))});
  auto file = arrow::io::FileOutputStream::Open(path.string());
  require(file.status(), path);
  auto writer = arrow::ipc::MakeStreamWriter(*file, schema);
  require(writer.status(), path);
  for (size_t begin = 0; begin < sequences.size(); begin += kRowsPerRecordBatch) {
    const size_t end = std::min(begin + kRowsPerRecordBatch, sequences.size());
    require(
        (*writer)->WriteRecordBatch(*make_record_batch(schema, sequences, begin, end, path)), path);
  }
  require((*writer)->Close(), path);
  require((*file)->Close(), path);

  const formats::Json state = {
      {"_data_files", {{{"filename", kShardName}}}},
      {"_fingerprint", "draftsmith"},
      {"_format_columns", nullptr},
      {"_format_kwargs", formats::Json::object()},
      {"_format_type", nullptr},
      {"_output_all_columns", false},
      {"_split", nullptr}};
  write_file_atomically(staged.path() / "state.json", state.dump(2));
  const formats::Json info = {
      {"citation", ""},
      {"description", ""},
      {"features", {{"input_ids", describe_list("int32")}, {"loss_mask", describe_list("int8")}}},
      {"homepage", ""},
      {"license", ""}};
  write_file_atomically(staged.path() / "dataset_info.json", info.dump(2));
  staged.publish();
}

}  // namespace draftsmith::data
