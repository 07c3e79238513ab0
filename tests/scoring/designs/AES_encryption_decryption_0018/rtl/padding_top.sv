module padding_top #(
    parameter       NBW_KEY  = 256,
    parameter       NBW_DATA = 128,
    parameter       NBW_MODE = 3,
    parameter       NBW_CNTR = 32,
    parameter       NBW_PADD = 4,
    parameter       NBW_PMOD = 2,
    parameter [7:0] W3C_BYTE = 8'hAF
) (
    input  logic                clk,
    input  logic                rst_async_n,
    input  logic                i_encrypt,
    input  logic                i_update_padding_mode,
    input  logic [NBW_PMOD-1:0] i_padding_mode,
    input  logic [NBW_PADD-1:0] i_padding_bytes,
    input  logic                i_reset_counter,
    input  logic                i_update_iv,
    input  logic [NBW_DATA-1:0] i_iv,
    input  logic                i_update_mode,
    input  logic [NBW_MODE-1:0] i_mode,
    input  logic                i_update_key,
    input  logic [NBW_KEY-1:0]  i_key,
    input  logic                i_start,
    input  logic [NBW_DATA-1:0] i_data,
    output logic                o_done,
    output logic [NBW_DATA-1:0] o_data
);

    localparam logic [NBW_PMOD-1:0] PKCS = 2'b00, ONEANDZEROES = 2'b01, ANSIX923 = 2'b10;  // and W3C = 2'b11

    logic [NBW_PMOD-1:0] padding_mode;
    logic [NBW_DATA-1:0] padded;
    logic                enc_done, dec_done;
    logic [NBW_DATA-1:0] ciphertext, plaintext;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n)
            padding_mode <= '0;
        else if (i_update_padding_mode)
            padding_mode <= i_padding_mode;
    end

    // Byte 0 is the least significant one and so the last one of the padding.
    always_comb begin
        padded = i_data;
        for (int b = 0; b < NBW_DATA / 8; b++) begin
            if (b < i_padding_bytes) begin
                case (padding_mode)
                    PKCS:         padded[8*b +: 8] = i_padding_bytes;
                    ONEANDZEROES: padded[8*b +: 8] = b + 1 == i_padding_bytes ? 8'h80 : 8'h00;
                    ANSIX923:     padded[8*b +: 8] = b == 0 ? i_padding_bytes : 8'h00;
                    default:      padded[8*b +: 8] = b == 0 ? i_padding_bytes : W3C_BYTE;
                endcase
            end
        end
    end

    aes_enc_top #(
        .NBW_KEY (NBW_KEY),
        .NBW_DATA(NBW_DATA),
        .NBW_MODE(NBW_MODE),
        .NBW_CNTR(NBW_CNTR)
    ) encrypt (
        .clk            (clk),
        .rst_async_n    (rst_async_n),
        .i_reset_counter(i_reset_counter && i_encrypt),
        .i_update_iv    (i_update_iv && i_encrypt),
        .i_iv           (i_iv),
        .i_update_mode  (i_update_mode && i_encrypt),
        .i_mode         (i_mode),
        .i_update_key   (i_update_key && i_encrypt),
        .i_key          (i_key),
        .i_start        (i_start && i_encrypt),
        .i_plaintext    (padded),
        .o_done         (enc_done),
        .o_ciphertext   (ciphertext)
    );

    aes_dec_top #(
        .NBW_KEY (NBW_KEY),
        .NBW_DATA(NBW_DATA),
        .NBW_MODE(NBW_MODE),
        .NBW_CNTR(NBW_CNTR)
    ) decrypt (
        .clk            (clk),
        .rst_async_n    (rst_async_n),
        .i_reset_counter(i_reset_counter && !i_encrypt),
        .i_update_iv    (i_update_iv && !i_encrypt),
        .i_iv           (i_iv),
        .i_update_mode  (i_update_mode && !i_encrypt),
        .i_mode         (i_mode),
        .i_update_key   (i_update_key && !i_encrypt),
        .i_key          (i_key),
        .i_start        (i_start && !i_encrypt),
        .i_ciphertext   (padded),
        .o_done         (dec_done),
        .o_plaintext    (plaintext)
    );

    assign o_done = i_encrypt ? enc_done : dec_done;
    assign o_data = i_encrypt ? ciphertext : plaintext;

endmodule
