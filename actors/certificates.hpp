#pragma once

#include <filesystem>

namespace millrace {

struct certificate_files {
  std::filesystem::path ca, certificate, key;
};

/// Makes a private certificate authority for one cluster, and the certificate that all its nodes
/// show each other: ca.pem, node.pem and node.key (readable by its owner only) in `folder`. The
/// authority's own key is not kept: nobody can add a certificate later.
/// \param days until both expire. \throws user_error when files are there already, or can't be written
certificate_files make_certificates(const std::filesystem::path& folder, int days);

} // namespace millrace
