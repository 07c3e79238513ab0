module top_64b66b_codec (
    input  logic        clk_in,
    input  logic        rst_in,
    input  logic [63:0] enc_data_in,
    input  logic [7:0]  enc_control_in,
    output logic [65:0] enc_data_out,
    input  logic        dec_data_valid_in,
    input  logic [65:0] dec_data_in,
    output logic [63:0] dec_data_out,
    output logic [7:0]  dec_control_out,
    output logic        dec_sync_error,
    output logic        dec_error_out
);

    logic [65:0] data_word, control_word;
    logic        is_control;

    // Both encoders answer one cycle later, so the choice between them has to wait as long.
    always_ff @(posedge clk_in or posedge rst_in) begin
        if (rst_in)
            is_control <= 1'b0;
        else
            is_control <= enc_control_in != 8'h00;
    end

    assign enc_data_out = is_control ? control_word : data_word;

    encoder_data_64b66b data_encoder (
        .clk_in            (clk_in),
        .rst_in            (rst_in),
        .encoder_data_in   (enc_data_in),
        .encoder_control_in(enc_control_in),
        .encoder_data_out  (data_word)
    );

    encoder_control_64b66b control_encoder (
        .clk_in            (clk_in),
        .rst_in            (rst_in),
        .encoder_data_in   (enc_data_in),
        .encoder_control_in(enc_control_in),
        .encoder_data_out  (control_word)
    );

    decoder_data_control_64b66b decoder (
        .clk_in               (clk_in),
        .rst_in               (rst_in),
        .decoder_data_valid_in(dec_data_valid_in),
        .decoder_data_in      (dec_data_in),
        .decoder_data_out     (dec_data_out),
        .decoder_control_out  (dec_control_out),
        .sync_error           (dec_sync_error),
        .decoder_error_out    (dec_error_out)
    );

endmodule
