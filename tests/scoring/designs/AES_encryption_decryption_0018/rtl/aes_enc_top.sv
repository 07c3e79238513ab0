module aes_enc_top #(
    parameter NBW_KEY  = 256,
    parameter NBW_DATA = 128,
    parameter NBW_MODE = 3,
    parameter NBW_CNTR = 32
) (
    input  logic                clk,
    input  logic                rst_async_n,
    input  logic                i_reset_counter,
    input  logic                i_update_iv,
    input  logic [NBW_DATA-1:0] i_iv,
    input  logic                i_update_mode,
    input  logic [NBW_MODE-1:0] i_mode,
    input  logic                i_update_key,
    input  logic [NBW_KEY-1:0]  i_key,
    input  logic                i_start,
    input  logic [NBW_DATA-1:0] i_plaintext,
    output logic                o_done,
    output logic [NBW_DATA-1:0] o_ciphertext
);

    // Whatever is none of these is ECB.
    localparam logic [NBW_MODE-1:0] CBC = 1, PCBC = 2, CFB = 3, OFB = 4, CTR = 5;

    logic [NBW_MODE-1:0] mode;
    logic [NBW_DATA-1:0] iv, iv_next, plaintext, ciphertext, enc_in, enc_out;
    logic [NBW_CNTR-1:0] counter;
    logic [NBW_KEY-1:0]  key;
    logic                accept, start, update_key, enc_done;

    assign accept = i_start && o_done;

    always_comb begin
        case (mode)
            CBC, PCBC: enc_in = plaintext ^ iv;
            CFB, OFB:  enc_in = iv;
            CTR:       enc_in = {counter[NBW_CNTR-1:NBW_CNTR/2], iv[NBW_DATA-NBW_CNTR/2-1:NBW_CNTR/2], counter[NBW_CNTR/2-1:0]};
            default:   enc_in = plaintext;
        endcase

        case (mode)
            CFB, OFB, CTR: ciphertext = plaintext ^ enc_out;
            default:       ciphertext = enc_out;
        endcase

        case (mode)
            CBC, OFB:  iv_next = enc_out;
            PCBC, CFB: iv_next = plaintext ^ enc_out;
            default:   iv_next = iv;
        endcase
    end

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            mode         <= '0;
            iv           <= '0;
            counter      <= '0;
            plaintext    <= '0;
            key          <= '0;
            start        <= 1'b0;
            update_key   <= 1'b0;
            o_done       <= 1'b1;
            o_ciphertext <= '0;
        end else begin
            // The core starts one cycle later, with a registered block and key.
            start      <= accept;
            update_key <= accept && i_update_key;
            if (accept) begin
                plaintext <= i_plaintext;
                o_done    <= 1'b0;
                if (i_update_key) key <= i_key;
            end
            if (enc_done) begin
                o_ciphertext <= ciphertext;
                o_done       <= 1'b1;
                iv           <= iv_next;
                if (mode == CTR) counter <= counter + 1'b1;
            end
            if (i_update_mode)   mode    <= i_mode;
            if (i_update_iv)     iv      <= i_iv;
            if (i_reset_counter) counter <= '0;
        end
    end

    aes_encrypt #(.NBW_KEY(NBW_KEY), .NBW_DATA(NBW_DATA)) encrypt (
        .clk         (clk),
        .rst_async_n (rst_async_n),
        .i_update_key(update_key),
        .i_key       (key),
        .i_start     (start),
        .i_data      (enc_in),
        .o_done      (enc_done),
        .o_data      (enc_out)
    );

endmodule
