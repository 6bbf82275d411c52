#include "actors/certificates.hpp"

#include "runtime/error.hpp"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

namespace millrace {

namespace {

namespace fs = std::filesystem;

struct release {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(X509_EXTENSION* p) const { X509_EXTENSION_free(p); }
  void operator()(FILE* p) const { std::fclose(p); }
};
template <class T>
using owned = std::unique_ptr<T, release>;

void require(bool ok, const char* what) {
  if (ok)
    return;
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  throw user_error(std::string("OpenSSL: ") + what + " failed: " + text);
}

owned<EVP_PKEY> make_key() {
  owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  require(key != nullptr, "making a key");
  return key;
}

void extend(X509* certificate, X509* issuer, int extension, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  owned<X509_EXTENSION> e(X509V3_EXT_conf_nid(nullptr, &context, extension, value));
  require(e != nullptr && X509_add_ext(certificate, e.get(), -1) == 1, "an extension");
}

/// A certificate for `key`, signed by `issuer` with `signer`; by itself where there is no issuer.
owned<X509> make_certificate(EVP_PKEY* key, const char* name, X509* issuer, EVP_PKEY* signer,
                             int days) {
  owned<X509> c(X509_new());
  require(c != nullptr, "a certificate");
  X509_set_version(c.get(), X509_VERSION_3);
  unsigned char serial[16];
  require(RAND_bytes(serial, sizeof serial) == 1, "a serial number");
  serial[0] &= 0x7FU;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c.get()));
  BN_free(number);
  X509_gmtime_adj(X509_getm_notBefore(c.get()), -3600); // clocks differ
  X509_gmtime_adj(X509_getm_notAfter(c.get()), 86400L * days);
  X509_set_pubkey(c.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(c.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  auto* by = issuer != nullptr ? issuer : c.get();
  X509_set_issuer_name(c.get(), X509_get_subject_name(by));
  extend(c.get(), by, NID_basic_constraints, issuer != nullptr ? "critical,CA:FALSE" : "critical,CA:TRUE");
  extend(c.get(), by, NID_key_usage,
         issuer != nullptr ? "critical,digitalSignature" : "critical,keyCertSign");
  extend(c.get(), by, NID_subject_key_identifier, "hash");
  if (issuer != nullptr)
    extend(c.get(), by, NID_ext_key_usage, "serverAuth,clientAuth");
  require(X509_sign(c.get(), signer, EVP_sha256()) > 0, "signing");
  return c;
}

owned<FILE> create(const fs::path& file, mode_t mode) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0)
    throw user_error(file.string() + " can't be made"
                     + (fs::exists(file) ? ": it is there already; name another folder, or remove it"
                                         : ""));
  return owned<FILE>(fdopen(fd, "w"));
}

} // namespace

certificate_files make_certificates(const fs::path& folder, int days) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  certificate_files files{folder / "ca.pem", folder / "node.pem", folder / "node.key"};
  for (const auto* f : {&files.ca, &files.certificate, &files.key})
    if (fs::exists(*f))
      throw user_error(f->string() + " is there already; name another folder, or remove it");
  auto ca_key = make_key(), key = make_key();
  auto ca = make_certificate(ca_key.get(), "Millrace cluster authority", nullptr, ca_key.get(), days);
  auto node = make_certificate(key.get(), "Millrace node", ca.get(), ca_key.get(), days);
  require(PEM_write_X509(create(files.ca, 0644).get(), ca.get()) == 1, "writing ca.pem");
  require(PEM_write_X509(create(files.certificate, 0644).get(), node.get()) == 1,
          "writing node.pem");
  require(PEM_write_PrivateKey(create(files.key, 0600).get(), key.get(), nullptr, nullptr, 0,
                               nullptr, nullptr) == 1,
          "writing node.key");
  return files;
}

} // namespace millrace
