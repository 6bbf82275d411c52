#pragma once

#include <c10/core/Device.h>

namespace millrace::toy {

/// A device as CUDA is one, for machines without: its memory is the host's and its operations are the
/// CPU's, but tensors on it say that they are elsewhere, and an operation among tensors of different
/// devices throws.
c10::Device fake_device();

} // namespace millrace::toy
