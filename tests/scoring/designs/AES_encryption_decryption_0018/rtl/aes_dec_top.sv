module aes_dec_top #(
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
    input  logic [NBW_DATA-1:0] i_ciphertext,
    output logic                o_done,
    output logic [NBW_DATA-1:0] o_plaintext
);

    // Whatever is none of these is ECB.
    localparam logic [NBW_MODE-1:0] CBC = 1, PCBC = 2, CFB = 3, OFB = 4, CTR = 5;

    logic [NBW_MODE-1:0] mode;
    logic [NBW_DATA-1:0] iv, iv_next, plaintext, ciphertext, core_in, dec_out, enc_out;
    logic [NBW_CNTR-1:0] counter;
    logic [NBW_KEY-1:0]  key;
    logic                accept, start, update_key, keystream, dec_done, enc_done;

    assign accept = i_start && o_done;
    // These modes decrypt by encrypting once more what the sender encrypted.
    assign keystream = mode == CFB || mode == OFB || mode == CTR;

    always_comb begin
        case (mode)
            CFB, OFB: core_in = iv;
            CTR:      core_in = {counter[NBW_CNTR-1:NBW_CNTR/2], iv[NBW_DATA-NBW_CNTR/2-1:NBW_CNTR/2], counter[NBW_CNTR/2-1:0]};
            default:  core_in = ciphertext;
        endcase

        case (mode)
            CFB, OFB, CTR: plaintext = ciphertext ^ enc_out;
            CBC, PCBC:     plaintext = iv ^ dec_out;
            default:       plaintext = dec_out;
        endcase

        case (mode)
            CBC, CFB: iv_next = ciphertext;
            PCBC:     iv_next = ciphertext ^ plaintext;
            OFB:      iv_next = enc_out;
            default:  iv_next = iv;
        endcase
    end

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            mode        <= '0;
            iv          <= '0;
            counter     <= '0;
            ciphertext  <= '0;
            key         <= '0;
            start       <= 1'b0;
            update_key  <= 1'b0;
            o_done      <= 1'b1;
            o_plaintext <= '0;
        end else begin
            // The cores start one cycle later, with a registered block and key.
            start      <= accept;
            update_key <= accept && i_update_key;
            if (accept) begin
                ciphertext <= i_ciphertext;
                o_done     <= 1'b0;
                if (i_update_key) key <= i_key;
            end
            if (dec_done || enc_done) begin
                o_plaintext <= plaintext;
                o_done      <= 1'b1;
                iv          <= iv_next;
                if (mode == CTR) counter <= counter + 1'b1;
            end
            if (i_update_mode)   mode    <= i_mode;
            if (i_update_iv)     iv      <= i_iv;
            if (i_reset_counter) counter <= '0;
        end
    end

    aes_decrypt #(.NBW_KEY(NBW_KEY), .NBW_DATA(NBW_DATA)) decrypt (
        .clk         (clk),
        .rst_async_n (rst_async_n),
        .i_update_key(update_key),
        .i_key       (key),
        .i_start     (start && !keystream),
        .i_data      (core_in),
        .o_done      (dec_done),
        .o_data      (dec_out)
    );

    aes_encrypt #(.NBW_KEY(NBW_KEY), .NBW_DATA(NBW_DATA)) encrypt (
        .clk         (clk),
        .rst_async_n (rst_async_n),
        .i_update_key(update_key),
        .i_key       (key),
        .i_start     (start && keystream),
        .i_data      (core_in),
        .o_done      (enc_done),
        .o_data      (enc_out)
    );

endmodule
