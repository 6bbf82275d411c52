#pragma once

#include <cstddef>

namespace millrace {

/// Makes the links between nodes withstand strangers, where CAF 0.17 by itself does not: messages that
/// claim to be longer than this are refused before memory is taken for them. (What else it takes
/// needs no call: link_hardening.cpp says it.)
void limit_message_bytes(std::size_t bytes);

} // namespace millrace
