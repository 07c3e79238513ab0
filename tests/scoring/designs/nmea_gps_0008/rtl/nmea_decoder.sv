module nmea_decoder #(
    parameter MAX_BUFFER_SIZE = 80,  // for a whole sentence, from the $ to the carriage return
    parameter WATCHDOG_CYCLES = 2000
) (
    input  logic        clk,
    input  logic        reset,
    input  logic [7:0]  serial_in,
    input  logic        serial_valid,
    input  logic        watchdog_timeout_en,
    output logic [15:0] data_out,
    output logic        data_valid,
    output logic [7:0]  data_out_bin,
    output logic        data_bin_valid,
    output logic        error_overflow,
    output logic        valid_sentence,
    output logic        watchdog_timeout
);
    localparam [7:0] START = "$", COMMA = ",", RETURN = 8'h0D;
    localparam FIELD = 7;  // "$GPRMC," comes before it

    typedef enum logic [1:0] {STATE_IDLE, STATE_PARSE, STATE_OUTPUT} state_t;

    state_t                               state;
    logic [7:0]                           buffer [0:MAX_BUFFER_SIZE-1];
    logic [$clog2(MAX_BUFFER_SIZE+1)-1:0] index;
    logic [$clog2(WATCHDOG_CYCLES+1)-1:0] idle_cycles;

    function automatic is_digit(input [7:0] char);
        is_digit = char >= "0" && char <= "9";
    endfunction

    wire [7:0] tens = buffer[FIELD];
    wire [7:0] ones = buffer[FIELD+1];
    wire       is_gprmc = {buffer[1], buffer[2], buffer[3], buffer[4], buffer[5], buffer[6]} == "GPRMC," && index >= FIELD;
    wire       has_field = is_gprmc && index >= FIELD + 2 && tens != COMMA && ones != COMMA;

    wire start = serial_valid && serial_in == START;
    wire finish = serial_valid && serial_in == RETURN;

    always_ff @(posedge clk)
        if (reset) begin
            state <= STATE_IDLE;
            {index, data_out, data_valid, data_out_bin, data_bin_valid, error_overflow, valid_sentence} <= 0;
        end else begin
            {data_valid, data_bin_valid, valid_sentence} <= 0;

            if (start) begin
                buffer[0] <= serial_in;
                index <= 1;
                error_overflow <= 0;
                state <= STATE_PARSE;
            end else if (state == STATE_PARSE && !watchdog_timeout) begin
                if (finish) begin
                    valid_sentence <= is_gprmc;
                    if (has_field) begin
                        data_out <= {tens, ones};
                        data_valid <= 1;
                        if (is_digit(tens) && is_digit(ones)) begin
                            data_out_bin <= 10 * tens[3:0] + ones[3:0];
                            data_bin_valid <= 1;
                        end
                    end
                    state <= STATE_OUTPUT;
                end else if (serial_valid && index == MAX_BUFFER_SIZE - 1) begin
                    // Only the carriage return could have taken the last place.
                    error_overflow <= 1;
                    state <= STATE_IDLE;
                end else if (serial_valid) begin
                    buffer[index] <= serial_in;
                    index <= index + 1;
                end
            end else state <= STATE_IDLE;
        end

    // It watches the line as such: a sender that falls silent between two sentences is found out, too.
    always_ff @(posedge clk)
        if (reset || !watchdog_timeout_en || start || finish) {idle_cycles, watchdog_timeout} <= 0;
        else if (idle_cycles == WATCHDOG_CYCLES - 1) watchdog_timeout <= 1;
        else idle_cycles <= idle_cycles + 1;
endmodule
