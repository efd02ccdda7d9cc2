// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/target_states.h"

#include <map>

#include "draftsmith/base/log.h"
#include "draftsmith/data/feature_store.h"
#include "draftsmith/formats/model_fingerprint.h"

namespace draftsmith::pipeline {

model::Target open_target(
    const model::TargetSettings& settings,
    const std::filesystem::path& dataset,
    const std::vector<int64_t>& layer_ids) {
  if (!data::is_feature_folder(dataset)) return model::Target::load(settings);
  auto store = std::make_shared<const data::FeatureStore>(dataset);
  store->check_origin(formats::fingerprint_model(settings.path), layer_ids);
  log_info(
      "features: stored in {} ({}), so of the target only embedding and head are loaded",
      dataset.string(), store->header().format);
  return model::Target::load_ends(settings, std::move(store));
}

std::vector<std::shared_ptr<const model::Target>> open_targets(
    const model::TargetSettings& settings,
    const std::vector<std::string>& devices,
    const std::function<model::Target(const model::TargetSettings&)>& open) {
  std::map<std::string, std::shared_ptr<const model::Target>> opened;
  std::vector<std::shared_ptr<const model::Target>> targets;
  for (const auto& device : devices) {
    auto& target = opened[device];
    auto own = settings;
    own.device = device;
    if (target == nullptr) target = std::make_shared<const model::Target>(open(own));
    targets.push_back(target);
  }
  return targets;
}

data::DataSettings fit_positions(data::DataSettings settings, const formats::TargetConfig& target) {
  const int64_t limit = target.max_position_embeddings;
  if (limit == 0 || settings.max_length <= limit) return settings;
  log_info("data.max_length: {} lowered to the target's {} positions", settings.max_length, limit);
  settings.max_length = limit;
  return settings;
}

model::TargetStates find_target_states(
    const model::Target& target,
    const data::TokenBatch& tokens,
    const std::vector<int64_t>& layer_ids) {
  if (target.stored() == nullptr) return target.forward(tokens.ids, layer_ids, tokens.document_ids);
  const auto states = target.stored()->read(tokens);
  return {states.features, states.last};
}

}  // namespace draftsmith::pipeline
