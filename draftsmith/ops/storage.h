// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops {

/// How kernels see a tensor's elements. Errors: ShapeError for a dtype that they do not have.
Storage storage_of(const torch::Tensor& tensor);

/// Whether autograd wants a gradient of any of these.
bool needs_gradient(std::initializer_list<torch::Tensor> tensors);

}  // namespace draftsmith::ops
